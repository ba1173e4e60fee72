//! The formats in which models write answers. The table `FORMATS` has the formats of tool calls that are recognized in
//! the output of a chat template, each with the texts that show it.

use std::sync::Arc;

use serde_json::Value as Json;

use super::call::{CallSyntax, Head, MessageSyntax, Tail};
use super::scan::{Cursor, Scan};
use super::thinking::Thinking;
use super::tools::Tools;
use super::{
    apertus, deepseek, gemma, glm, harmony, hyperclova, json_calls, kimi, llama4, minimax, mistral, qwen_coder, solar,
    tool_code,
};

/// A format in which models write calls.
#[derive(Debug)]
pub(in crate::text) struct Format {
    pub(super) name: &'static str,
    /// The texts that a chat template of this format writes when it gets tools and calls.
    prompt_has: &'static [&'static str],
    /// Texts after which `head` reads on: they may begin a call, a thought or a header. No opener is the start of
    /// another one.
    pub(super) openers: &'static [&'static str],
    /// Texts that are openers only before any content and any call.
    pub(super) first_openers: &'static [&'static str],
    /// Other markup of the format. Like openers, it may be special tokens.
    pub(super) marks: &'static [&'static str],
    /// Reads the text after an opener: up to the arguments of the call, or with them.
    pub(super) head: fn(&'static str, &mut Cursor<'_>, &Tools) -> Scan<Head>,
    /// Reads the text after the arguments of a call.
    pub(super) tail: fn(&mut Cursor<'_>) -> Scan<Tail>,
    /// The marks around thoughts and content, in formats where these are messages of their own (Harmony).
    pub(super) messages: Option<MessageSyntax>,
    /// Returns an id, given the name of the called tool and the number of calls before.
    new_id: fn(&str, usize) -> String,
    /// The syntax that a grammar enforces when the model has to call a tool. `None` if the arguments of the format are
    /// not JSON. The grammar then enforces generic calls.
    syntax: Option<CallSyntax>,
}

impl Format {
    /// The text between a thought and the content before a call, in the text of a message that has both.
    pub(in crate::text) fn between_thought_and_content(&self) -> &'static str {
        self.messages.map_or("\n", |messages| messages.after_thought)
    }
}

/// The syntax of calls that are JSON objects in a list.
const LIST: CallSyntax = CallSyntax {
    begin: "[",
    before_name: "{\"name\": \"",
    before_arguments: "\", \"arguments\": ",
    after_arguments: "}",
    separator: ", ",
    end: "]",
};

/// The syntax of Llama's calls.
const LLAMA: CallSyntax =
    CallSyntax { begin: "", before_arguments: "\", \"parameters\": ", separator: "; ", end: "", ..LIST };

/// The format for chat templates that do not know `tools`, and for templates whose format is not known here.
const GENERIC: Format = Format {
    name: "generic",
    prompt_has: &[],
    openers: &["<tool_call>"],
    first_openers: &[],
    marks: &["</tool_call>"],
    head: json_calls::head,
    tail: json_calls::tail,
    messages: None,
    new_id: |_, _| call_id(),
    syntax: Some(GENERIC_SYNTAX),
};

const GENERIC_SYNTAX: CallSyntax = CallSyntax {
    begin: "",
    before_name: "<tool_call>\n{\"name\": \"",
    before_arguments: "\", \"arguments\": ",
    after_arguments: "}\n</tool_call>",
    separator: "\n",
    end: "",
};

static GENERIC_CALLS: Format = GENERIC;

/// The known formats. A chat template uses the first one that matches.
pub(super) static FORMATS: [Format; 32] = [
    Format {
        name: "harmony",
        prompt_has: &["<|channel|>", "<|message|>"],
        openers: &harmony::OPENERS,
        first_openers: &harmony::FIRST_OPENERS,
        marks: &[],
        head: harmony::head,
        tail: harmony::tail,
        messages: Some(harmony::MESSAGES),
        syntax: Some(harmony::SYNTAX),
        ..GENERIC
    },
    Format {
        name: "solar",
        prompt_has: &["<|tool_call:begin|>", "<|tool_call:args|>"],
        openers: &solar::OPENERS,
        marks: &solar::MARKS,
        head: solar::head,
        tail: solar::tail,
        messages: Some(solar::MESSAGES),
        new_id: |_, _| solar::call_id(),
        syntax: Some(solar::SYNTAX),
        ..GENERIC
    },
    Format {
        name: "hyperclova",
        prompt_has: &["<|im_start|>assistant -> tool/function_call"],
        openers: &hyperclova::OPENERS,
        first_openers: &hyperclova::FIRST_OPENERS,
        marks: &[],
        head: hyperclova::head,
        messages: Some(hyperclova::MESSAGES),
        syntax: Some(hyperclova::SYNTAX),
        ..GENERIC
    },
    Format {
        name: "deepseek-code",
        prompt_has: &["<｜tool▁call▁begin｜>function<｜tool▁sep｜>"],
        openers: &[deepseek::CALLS_BEGIN, deepseek::CALL_BEGIN],
        marks: &deepseek::MARKS,
        head: deepseek::head,
        tail: deepseek::tail,
        syntax: Some(deepseek::CODE_SYNTAX),
        ..GENERIC
    },
    Format {
        name: "deepseek",
        prompt_has: &["<｜tool▁call▁begin｜>"],
        openers: &[deepseek::CALLS_BEGIN, deepseek::CALL_BEGIN],
        marks: &deepseek::MARKS,
        head: deepseek::head,
        tail: deepseek::tail,
        syntax: Some(deepseek::SYNTAX),
        ..GENERIC
    },
    Format {
        name: "kimi",
        prompt_has: &["<|tool_call_begin|>", "<|tool_call_argument_begin|>"],
        openers: &[kimi::SECTION, kimi::CALL],
        marks: &kimi::MARKS,
        head: kimi::head,
        tail: kimi::tail,
        new_id: kimi::call_id,
        syntax: Some(kimi::SYNTAX),
        ..GENERIC
    },
    Format {
        name: "mistral-names",
        prompt_has: &["[TOOL_CALLS]", "[ARGS]"],
        openers: &["[TOOL_CALLS]"],
        marks: &["[ARGS]", "[CALL_ID]"],
        head: mistral::head,
        tail: mistral::tail,
        new_id: |_, _| mistral::call_id(),
        syntax: Some(mistral::SYNTAX),
        ..GENERIC
    },
    Format {
        name: "mistral",
        prompt_has: &["[TOOL_CALLS]"],
        openers: &["[TOOL_CALLS]"],
        marks: &["[ARGS]", "[CALL_ID]"],
        head: mistral::head,
        tail: mistral::tail,
        new_id: |_, _| mistral::call_id(),
        syntax: Some(CallSyntax { begin: "[TOOL_CALLS][", ..LIST }),
        ..GENERIC
    },
    Format {
        name: "seed-oss",
        prompt_has: &["<function=", "<parameter=", "<seed:tool_call>"],
        openers: &["<seed:tool_call>", "<function="],
        marks: &["</seed:tool_call>"],
        head: qwen_coder::head,
        tail: qwen_coder::tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "qwen-coder",
        prompt_has: &["<function=", "<parameter="],
        openers: &["<tool_call>", "<function="],
        head: qwen_coder::head,
        tail: qwen_coder::tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "hy3",
        prompt_has: &["<tool_calls", "<tool_call", "<arg_key", "<arg_value"],
        openers: &glm::HUNYUAN_OPENERS,
        marks: &glm::HUNYUAN_MARKS,
        head: glm::head,
        tail: glm::hunyuan_tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "glm",
        prompt_has: &["<tool_call>", "<arg_key>", "<arg_value>"],
        marks: &glm::MARKS,
        head: glm::head,
        tail: glm::tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "longcat-keys",
        prompt_has: &[glm::LONGCAT_CALL, "<longcat_arg_key>"],
        openers: &[glm::LONGCAT_CALL],
        marks: &glm::LONGCAT_MARKS,
        head: glm::longcat_head,
        tail: glm::longcat_tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "longcat",
        prompt_has: &[glm::LONGCAT_CALL],
        openers: &[glm::LONGCAT_CALL],
        marks: &glm::LONGCAT_MARKS,
        head: glm::longcat_head,
        tail: glm::longcat_tail,
        syntax: Some(glm::LONGCAT_SYNTAX),
        ..GENERIC
    },
    Format {
        name: "step",
        prompt_has: &[minimax::STEP_INVOKE],
        openers: &minimax::STEP_OPENERS,
        marks: &minimax::STEP_MARKS,
        head: minimax::step_head,
        tail: minimax::step_tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "dots",
        prompt_has: &[minimax::DOTS_CALLS, "<invoke name="],
        openers: &[minimax::DOTS_CALLS],
        marks: &[minimax::DOTS_CALLS_END],
        head: minimax::head,
        tail: minimax::tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "minimax",
        prompt_has: &[minimax::CALLS, "<invoke name="],
        openers: &[minimax::CALLS],
        marks: &[minimax::CALLS_END],
        head: minimax::head,
        tail: minimax::tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "gemma",
        prompt_has: &["<|tool_call>call:"],
        openers: &["<|tool_call>"],
        marks: &["<tool_call|>", "<|\"|>"],
        head: gemma::head,
        tail: gemma::tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "function-gemma",
        prompt_has: &["<start_function_call>"],
        openers: &["<start_function_call>"],
        marks: &["<end_function_call>", "<escape>"],
        head: gemma::head,
        tail: gemma::tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "tool-code",
        prompt_has: &["```tool_code"],
        openers: &["```tool_code"],
        marks: &[],
        head: tool_code::head,
        tail: tool_code::tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "olmo",
        prompt_has: &["<function_calls>", "</function_calls>"],
        openers: &["<function_calls>"],
        marks: &["</function_calls>"],
        head: tool_code::head,
        tail: tool_code::tail,
        syntax: None,
        ..GENERIC
    },
    Format {
        name: "nemotron",
        prompt_has: &["<TOOLCALL>[", "</TOOLCALL>"],
        openers: &["<TOOLCALL>"],
        marks: &["</TOOLCALL>"],
        syntax: Some(CallSyntax { begin: "<TOOLCALL>[", end: "]</TOOLCALL>", ..LIST }),
        ..GENERIC
    },
    Format {
        name: "internlm",
        prompt_has: &["<|action_start|><|plugin|>"],
        openers: &["<|action_start|><|plugin|>"],
        marks: &["<|action_start|>", "<|plugin|>", "<|action_end|>"],
        syntax: Some(CallSyntax {
            begin: "",
            before_name: "<|action_start|><|plugin|>\n{\"name\": \"",
            after_arguments: "}<|action_end|>",
            separator: "",
            end: "",
            ..LIST
        }),
        ..GENERIC
    },
    Format {
        name: "cohere",
        prompt_has: &["<|START_ACTION|>"],
        openers: &["<|START_ACTION|>"],
        marks: &["<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"],
        syntax: Some(CallSyntax {
            begin: "<|START_ACTION|>[",
            before_name: "{\"tool_call_id\": \"0\", \"tool_name\": \"",
            before_arguments: "\", \"parameters\": ",
            end: "]<|END_ACTION|>",
            ..LIST
        }),
        ..GENERIC
    },
    Format {
        name: "apertus",
        prompt_has: &[apertus::CALLS],
        openers: &[apertus::CALLS],
        marks: &[apertus::CALLS_END],
        head: apertus::head,
        syntax: Some(apertus::SYNTAX),
        ..GENERIC
    },
    Format {
        name: "granite",
        prompt_has: &["<|tool_call|>"],
        openers: &["<|tool_call|>"],
        marks: &["<|/tool_call|>"],
        syntax: Some(CallSyntax { begin: "<|tool_call|>[", ..LIST }),
        ..GENERIC
    },
    Format {
        name: "hunyuan",
        prompt_has: &["<tool_calls>", "</tool_calls>"],
        openers: &["<tool_calls>"],
        marks: &["</tool_calls>"],
        syntax: Some(CallSyntax { begin: "<tool_calls>[", end: "]</tool_calls>", ..LIST }),
        ..GENERIC
    },
    // Phi's template shows the tools but does not tell the model how to call them.
    Format {
        name: "phi",
        prompt_has: &["<|tool|>", "<|/tool|>"],
        openers: &["<|tool_call|>", "functools"],
        marks: &["<|/tool_call|>"],
        syntax: Some(CallSyntax { begin: "<|tool_call|>[", end: "]<|/tool_call|>", ..LIST }),
        ..GENERIC
    },
    Format { name: "hermes", prompt_has: &["<tool_call>", "\"arguments\": "], ..GENERIC },
    Format {
        name: "xlam",
        prompt_has: &["[{\"name\": \"tool_call_name\", \"arguments\": "],
        first_openers: &["["],
        syntax: Some(LIST),
        ..GENERIC
    },
    Format {
        name: "llama4",
        prompt_has: &["<|header_start|>", "<|header_end|>"],
        openers: &[llama4::PYTHON_START, llama4::PYTHON_END],
        first_openers: &llama4::FIRST_OPENERS,
        marks: &[],
        head: llama4::head,
        tail: llama4::tail,
        syntax: Some(LLAMA),
        ..GENERIC
    },
    Format {
        name: "llama",
        prompt_has: &["\"parameters\": dictionary of argument name and its value"],
        openers: &["<|python_tag|>"],
        first_openers: &["{"],
        marks: &[],
        head: json_calls::head_of_bare_objects,
        syntax: Some(LLAMA),
        ..GENERIC
    },
];

/// A part of a text with marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkedText<'t> {
    /// A mark that is a special token, with its id.
    Mark(u32),
    /// Text without such a mark.
    Text(&'t str),
}

/// The form in which one answer's text is read.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswerForm {
    pub(super) format: Option<&'static Format>,
    pub(super) thinking: Option<&'static Thinking>,
    /// True if the prompt ends inside a thought.
    pub(super) begins_in_thought: bool,
    pub(super) tools: Arc<Tools>,
    /// The marks of this form, and of generic calls, that are special tokens, with their ids.
    pub(super) special_marks: Vec<(&'static str, u32)>,
    /// True if the answer ends with its first call.
    pub(crate) has_one_call: bool,
}

/// Returns the format that a chat template uses, judged by its output for tools and calls.
pub(in crate::text) fn format_of(prompt: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.prompt_has.iter().all(|text| prompt.contains(text)))
}

impl AnswerForm {
    /// Creates the form of an answer to `prompt`. Without tools no calls are read, and the format is used only if it
    /// also marks thoughts.
    pub(in crate::text) fn new(
        (format, thinking): (Option<&'static Format>, Option<&'static Thinking>),
        prompt: &str,
        tools: Tools,
    ) -> Self {
        let format = format.or((!tools.is_empty()).then_some(&GENERIC_CALLS));
        let format = format.filter(|format| !tools.is_empty() || format.messages.is_some());
        let thinking = thinking.filter(|_| format.is_none_or(|format| format.messages.is_none()));
        let begins_in_thought = thinking.is_some_and(|thinking| thinking.is_begun_by(prompt));
        Self { format, thinking, begins_in_thought, tools: Arc::new(tools), ..Self::default() }
    }

    /// Sets `special_marks`. `special_id` returns the id of a text that is a special token.
    pub(in crate::text) fn with_special_marks(mut self, special_id: impl Fn(&str) -> Option<u32>) -> Self {
        let of_format = self.format.map_or_else(Vec::new, |format| [format.openers, format.marks].concat());
        let of_thinking = self.thinking.into_iter().flat_map(Thinking::marks);
        let of_generic = [GENERIC_CALLS.openers, GENERIC_CALLS.marks].concat();
        let marks = of_format.into_iter().chain(of_thinking).chain(of_generic);
        self.special_marks = marks.filter_map(|mark| Some((mark, special_id(mark)?))).collect();
        self
    }

    /// Returns the syntax that a grammar enforces for calls. If the format has no such syntax, this form changes to
    /// generic calls, so that the answer is read as the grammar enforces it.
    pub(crate) fn make_enforceable(&mut self) -> CallSyntax {
        let syntax = self.format.and_then(|format| format.syntax);
        syntax.unwrap_or_else(|| {
            self.format = Some(&GENERIC_CALLS);
            GENERIC_SYNTAX
        })
    }

    /// The marks of a thought that may come before calls. The opening mark is `None` if the prompt ends inside a
    /// thought.
    pub(crate) fn thought_marks(&self) -> Option<(Option<&'static str>, &'static str)> {
        if let Some(messages) = self.messages() {
            return Some((Some(messages.begin_thought), messages.end_thought));
        }
        let thinking = self.thinking?;
        let open = (!self.begins_in_thought).then_some(thinking.open);
        Some((open, thinking.close.first()?))
    }

    /// The text before content, which is empty unless content has a mark in this form.
    pub(crate) fn content_mark(&self) -> &'static str {
        self.messages().map_or("", |messages| messages.begin_content)
    }

    fn messages(&self) -> Option<MessageSyntax> {
        self.format.and_then(|format| format.messages)
    }

    /// The names and schemas of the functions that the model may call.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.tools.each().map(|tool| (tool.name.as_str(), &tool.parameters))
    }

    /// Splits a text into this form's marks that are special tokens and the texts between them.
    pub(crate) fn parts<'t>(&self, mut text: &'t str) -> Vec<MarkedText<'t>> {
        let mut parts = Vec::new();
        let first_mark = |text: &str| {
            let marks = self.special_marks.iter();
            marks.filter_map(|(mark, id)| Some((text.find(mark)?, mark.len(), *id))).min()
        };
        while let Some((at, len, id)) = first_mark(text) {
            parts.extend([MarkedText::Text(&text[..at]), MarkedText::Mark(id)]);
            text = &text[at + len..];
        }
        parts.push(MarkedText::Text(text));
        parts.retain(|part| *part != MarkedText::Text(""));
        parts
    }

    /// True if marks in the text of ordinary tokens are no marks: in messages, if all marks are special tokens.
    pub(super) fn may_spell_marks(&self) -> bool {
        let is_special = |mark: &&str| self.special_marks.iter().any(|(special, _)| special == mark);
        self.format.is_some_and(|format| format.messages.is_some() && format.openers.iter().all(is_special))
    }

    /// True if this form reads the special token `token`. Other special tokens are left out of the answer.
    pub(crate) fn has_mark(&self, token: &str) -> bool {
        let of_format = |format: &Format| [format.openers, format.marks].concat().contains(&token);
        self.format.is_some_and(of_format)
            || self.thinking.is_some_and(|thinking| thinking.marks().any(|mark| token == mark))
    }

    pub(super) fn new_id(&self, name: &str, num_before: usize) -> String {
        self.format.map_or_else(call_id, |format| (format.new_id)(name, num_before))
    }
}

impl PartialEq for AnswerForm {
    /// Compares formats by their names, and ignores `special_marks`.
    fn eq(&self, other: &Self) -> bool {
        let name = |form: &Self| form.format.map(|format| format.name);
        name(self) == name(other)
            && (self.thinking, self.begins_in_thought, &self.tools, self.has_one_call)
                == (other.thinking, other.begins_in_thought, &other.tools, other.has_one_call)
    }
}

fn call_id() -> String {
    format!("call_{:016x}{:08x}", fastrand::u64(..), fastrand::u32(..))
}
