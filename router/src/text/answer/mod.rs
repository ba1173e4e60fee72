//! The parts of an answer: what the model thought, what it says, and which tools it calls, found in its text while it grows.
//!
//! To add a format of calls: one row in `form`, and, unless its calls are JSON objects between two marks, a file with
//! its `head` and `tail`. A mark of thoughts is a row in `thinking`.
//!
//! | file | what is read there |
//! |---|---|
//! | `json_calls` | objects with a name and arguments: Hermes, Qwen, Llama, Phi, Granite, Cohere, and the generic format |
//! | `qwen_coder` | Qwen Coder's parameters between tags |
//! | `mistral` | `[TOOL_CALLS]` with a list, or with names and `[ARGS]` |
//! | `deepseek` | DeepSeek's marks, with and without a code block |
//! | `gemma` | `call:name{…}` of FunctionGemma and Gemma 4 |
//! | `tool_code` | Python's calls in a block `tool_code`, of Gemma 3 |
//! | `harmony` | channels of gpt-oss, thoughts among them |
//!
//! A call is one only where the request has a tool of its name; whatever else looks like the beginning of a call is content,
//! mark and all. A call that has begun stays one: its arguments are what the model wrote, also where they are cut off or
//! no JSON. White space beside a mark belongs to the mark. How the text is cut into pieces makes no difference.

mod deepseek;
mod form;
mod gemma;
mod generic;
mod harmony;
mod json_calls;
mod json_value;
mod mistral;
mod parser;
mod qwen_coder;
mod scan;
#[cfg(test)]
mod tests;
mod thinking;
mod tool_code;
mod tools;

pub(crate) use form::{AnswerForm, CallSyntax};
pub(super) use form::{Format, format_of};
pub(super) use generic::describe_tools;
pub(crate) use parser::AnswerParser;
pub(super) use thinking::{Thinking, thinking_of};
pub(crate) use tools::Tools;

/// Something new in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnswerEvent {
    Reasoning(String),
    Content(String),
    CallStarted {
        id: String,
        name: String,
    },
    /// More of the arguments of the call that started last, a JSON object.
    Arguments(String),
    CallEnded,
}

/// All of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<ToolCall>,
    /// Tokens of thoughts, with the one that ends the mark before them and those of the mark behind them.
    pub(crate) num_reasoning_tokens: u32,
}

/// A function that the model wants called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The JSON of an object, unless it is cut off.
    pub(crate) arguments: String,
}

impl Answer {
    /// Adds what is new.
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
