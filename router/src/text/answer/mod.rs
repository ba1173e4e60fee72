//! Parses an answer while it grows: the model's thoughts, its content, and the tools that it calls.
//!
//! To add a format of calls, add an entry to the table in `form` and, unless its calls are JSON objects between two
//! marks, a file with its `head` and `tail`. To add marks around thoughts, add an entry to the table in `thinking`.
//!
//! | file | content |
//! |---|---|
//! | `json_calls` | objects with name and arguments: Hermes, Qwen, Llama, Phi, Granite, Cohere, the generic format |
//! | `qwen_coder` | Qwen Coder's parameters between tags |
//! | `glm` | keys and values between tags, of GLM, Hunyuan 3 and LongCat |
//! | `minimax` | blocks of calls with parameters between tags, of MiniMax, dots and Step 3 |
//! | `mistral` | `[TOOL_CALLS]` with a list, or with names and `[ARGS]` |
//! | `deepseek` | DeepSeek's marks, with and without a code block |
//! | `kimi` | Kimi K2's marks |
//! | `gemma` | `call:name{…}` of FunctionGemma and Gemma 4 |
//! | `llama4` | Python's calls in a list, or JSON objects, of Llama 4 |
//! | `tool_code` | Python's calls in a block, of Gemma 3 and OLMo 3 |
//! | `harmony` | channels of gpt-oss, thoughts among them |
//! | `solar` | messages of Solar Open, thoughts among them |
//! | `hyperclova` | messages of HyperCLOVA X, thoughts among them |
//!
//! A call counts only if the request has a tool of its name. Other text that looks like the start of a call is content,
//! including its mark, except for the marks and headers of messages. A call that has begun stays a call, even if its
//! arguments are cut off or not JSON. If all openers of a format with messages are special tokens, the same text in
//! ordinary tokens is no mark (`spelled`). White space beside a mark belongs to the mark. The result does not depend on
//! how the received text was cut into pieces.

mod apertus;
mod call;
mod deepseek;
#[cfg(test)]
mod families;
mod form;
mod gemma;
mod generic;
mod glm;
mod harmony;
mod hyperclova;
mod json_calls;
mod json_value;
mod kimi;
mod llama4;
mod minimax;
mod mistral;
mod parser;
#[cfg(test)]
mod pieces;
mod qwen_coder;
#[cfg(test)]
mod recorded;
mod scan;
mod solar;
mod spelled;
#[cfg(test)]
mod tests;
mod thinking;
mod tool_code;
mod tools;

pub(crate) use call::CallSyntax;
pub(crate) use form::{AnswerForm, MarkedText};
pub(super) use form::{Format, format_of};
pub(super) use generic::describe_tools;
pub(crate) use parser::AnswerParser;
pub(super) use thinking::{Thinking, thinking_of};
pub(crate) use tools::Tools;

/// An event of an answer that grows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnswerEvent {
    Reasoning(String),
    Content(String),
    CallStarted {
        id: String,
        name: String,
    },
    /// The next part of the arguments of the call that started last. The parts join to a JSON object, unless the
    /// model's text is cut off or malformed.
    Arguments(String),
    CallEnded,
}

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<ToolCall>,
    /// The number of tokens of thoughts, including the token that ends the opening mark and those of the closing mark.
    pub(crate) num_reasoning_tokens: u32,
}

/// A function call that the model asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    /// A JSON object, unless the model's text is cut off or malformed.
    pub(crate) arguments: String,
}

impl Answer {
    /// Adds the content of an event to the answer.
    pub(crate) fn push(&mut self, event: &AnswerEvent) {
        match event {
            AnswerEvent::Reasoning(text) => self.reasoning.push_str(text),
            AnswerEvent::Content(text) => self.content.push_str(text),
            AnswerEvent::CallStarted { id, name } => {
                self.calls.push(ToolCall { id: id.clone(), name: name.clone(), arguments: String::new() });
            }
            AnswerEvent::Arguments(piece) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(piece);
                }
            }
            AnswerEvent::CallEnded => {}
        }
    }
}
