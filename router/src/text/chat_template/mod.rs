//! Chat templates: they turn the messages of a conversation into the text format that the model was trained on.
//!
//! Templates are Jinja, written for Python. [`ChatTemplate::render`] returns the same text as transformers'
//! `apply_chat_template`, apart from known differences; the tests in `recorded` compare both and list them. Neither a
//! model's template nor a conversation is trusted: a child process renders (`renderer`), with limits of memory and
//! processor time. The time that a template can print is one of the inputs.
//!
//! Outside of tests, this folder reads no file and knows no tokenizer.

mod adapt;
mod calls;
mod environment;
mod json;
mod methods;
mod program;
mod python;
#[cfg(test)]
mod recorded;
mod renderer;
mod source;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use jiff::civil::DateTime;
use serde_json::{Map, Value as Json};

pub use renderer::{ChatRendererArgs, render_chats_as_process};

use super::answer::{AnswerForm, Thinking, Tools, thinking_of};
use adapt::Shapes;
use program::{Conversation, TemplateSource};
use renderer::{IsolatedTemplate, MAX_MEMORY_BYTES, MIN_MEMORY_BYTES};

/// The mark that is appended to the message that the model continues, so that the message's end can be found in the
/// rendered text.
const END_MARK: &str = "HILO_END_OF_FINAL_MESSAGE ";

/// The fields of a message that may contain a model's thoughts. Newer templates read the first field.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Special tokens by their names in `tokenizer_config.json`, such as `bos_token`.
pub(crate) type SpecialTokens = BTreeMap<String, String>;

/// A template that can be rendered.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    template: IsolatedTemplate,
    shapes: Shapes,
    thinking: Option<&'static Thinking>,
    /// The first error of a limit while test messages were rendered. No further ones are rendered then.
    failed_trial: OnceLock<ChatTemplateError>,
}

/// The text of a rendered conversation, and the form of the answer to it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RenderedChat {
    pub(crate) text: String,
    /// The form in which the answer to this text is read.
    pub(crate) answer_form: AnswerForm,
}

/// A conversation and the other inputs of a template.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ChatInputs {
    /// At least one message.
    pub(crate) messages: Vec<Map<String, Json>>,
    /// Functions in OpenAI's form.
    pub(crate) tools: Option<Vec<Json>>,
    pub(crate) documents: Option<Vec<Json>>,
    pub(crate) ending: ChatEnding,
    /// Further variables, such as `enable_thinking`. They override special tokens.
    pub(crate) variables: Map<String, Json>,
    /// The time that `strftime_now` formats.
    pub(crate) now: DateTime,
}

impl ChatInputs {
    /// The size of all names and values in the inputs, in bytes.
    pub(crate) fn num_bytes(&self) -> usize {
        let Self { messages, tools, documents, variables, ending: _, now: _ } = self;
        let lists = tools.iter().chain(documents).flatten().map(num_bytes);
        let objects = messages.iter().chain([variables]).map(num_object_bytes);
        lists.chain(objects).sum()
    }
}

fn num_bytes(value: &Json) -> usize {
    match value {
        Json::Null | Json::Bool(_) | Json::Number(_) => size_of::<f64>(),
        Json::String(text) => text.len(),
        Json::Array(values) => values.iter().map(num_bytes).sum(),
        Json::Object(object) => num_object_bytes(object),
    }
}

fn num_object_bytes(object: &Map<String, Json>) -> usize {
    object.iter().map(|(name, value)| name.len() + num_bytes(value)).sum()
}

/// The point at which the rendered text ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ChatEnding {
    /// The text ends with the start of the assistant's answer: `add_generation_prompt`.
    #[default]
    GenerationPrompt,
    /// The text ends inside the last message, which the model continues: `continue_final_message`.
    FinalMessage,
    /// The text ends after the last message.
    Conversation,
}

/// The reason why a conversation cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChatTemplateError {
    #[error("template not found: the model has none, and none was given with --chat-template")]
    NotFound,
    /// The template or a file with it is invalid, which is found when the server starts.
    #[error("the chat template cannot be read: {0}")]
    Unreadable(String),
    /// The template's own error message.
    #[error("{0}")]
    Raised(String),
    #[error("{0}")]
    Failed(String),
    #[error("rendering the conversation takes more than {} steps", environment::MAX_STEPS)]
    TooManySteps,
    #[error("rendering the conversation takes more than {seconds} s of processor time")]
    TooMuchTime { seconds: u64 },
    #[error("rendering the conversation takes more than {} MiB of memory, or nests values too deeply", bytes >> 20)]
    TooMuchMemory { bytes: u64 },
    /// A defect of this server or of its surroundings.
    #[error("the process that renders conversations cannot be used ({0}); ask the server's operator")]
    NoProcess(String),
    #[error("the last message has no `content` to continue")]
    NothingToContinue,
    #[error("the template leaves out or changes the last message, so it cannot be continued")]
    NotContinued,
}

impl ChatTemplateError {
    /// True if the template exceeded a limit, or could not be tried. Such a template ends the start of a server.
    pub(crate) fn ends_start(&self) -> bool {
        use ChatTemplateError::{NoProcess, TooManySteps, TooMuchMemory, TooMuchTime};
        matches!(self, TooManySteps | TooMuchTime { .. } | TooMuchMemory { .. } | NoProcess(_))
    }
}

/// Ends the processes that this thread started to render. The thread starts them again if it renders again.
pub(crate) fn end_renderers() {
    renderer::end_children();
}

impl ChatTemplate {
    /// Compiles a template, and renders test messages to find the shapes that it reads.
    ///
    /// # Errors
    /// [`ChatTemplateError::Unreadable`] when the source is not valid Jinja. Unknown functions, filters and tests are
    /// errors when they are rendered. An error of a limit when compiling or a test message exceeds it.
    pub(crate) fn compile(source: &str, special_tokens: SpecialTokens) -> Result<Self, ChatTemplateError> {
        let template = IsolatedTemplate::compile(&TemplateSource { text: Cow::Borrowed(source), special_tokens })?;
        let thinking = thinking_of(source);
        let mut template = Self { template, shapes: Shapes::ALL, thinking, failed_trial: OnceLock::new() };
        template.shapes = Shapes::of(&template);
        template.thinking = template.thinking.or_else(|| adapt::thinking_in_texts(&template));
        match template.failed_trial.take() {
            Some(error) => Err(error),
            None => Ok(template),
        }
    }

    /// Limits the memory of a rendering to this share of the memory for text, in bytes. Inputs have memory of their
    /// own.
    pub(crate) fn limit_memory(&mut self, share_bytes: usize) {
        self.template.limits.memory_bytes = (share_bytes as u64).clamp(MIN_MEMORY_BYTES, MAX_MEMORY_BYTES);
    }

    /// Returns the text of a conversation whose messages have the shapes of OpenAI's API. Messages are adapted to the
    /// template: as it needs, parts are joined into a text or a text becomes a part, and the JSON of a call's arguments
    /// is parsed. If the template shows tools in no known format, then the tools, calls and results become texts.
    ///
    /// # Errors
    /// The template's own error message, or the reason why rendering failed.
    pub(crate) fn render_adapted(&self, mut inputs: ChatInputs) -> Result<RenderedChat, ChatTemplateError> {
        let tools = Tools::new(inputs.tools.as_deref().unwrap_or_default());
        let format = adapt::adapt(self, &mut inputs);
        let text = self.render(&inputs)?;
        let answer_form = AnswerForm::new((format, self.thinking), &text, tools);
        Ok(RenderedChat { text, answer_form })
    }

    /// Returns the text of a conversation, without adapting its messages.
    ///
    /// # Errors
    /// The template's own error message, or the reason why rendering failed.
    pub(crate) fn render(&self, inputs: &ChatInputs) -> Result<String, ChatTemplateError> {
        let mut messages: Vec<_> = inputs.messages.iter().map(normalize).collect();
        if inputs.ending != ChatEnding::FinalMessage {
            return self.evaluate(&messages, inputs);
        }
        let last = messages.last_mut().and_then(|message| message.get_mut("content"));
        let content = last.and_then(final_text).ok_or(ChatTemplateError::NothingToContinue)?;
        let wanted = content.trim().to_owned();
        content.push_str(END_MARK);
        cut_at_mark(self.evaluate(&messages, inputs)?, &wanted)
    }

    fn evaluate(&self, messages: &[Map<String, Json>], inputs: &ChatInputs) -> Result<String, ChatTemplateError> {
        self.template.render(&Conversation {
            messages: Cow::Borrowed(messages),
            tools: Cow::Borrowed(&inputs.tools),
            documents: Cow::Borrowed(&inputs.documents),
            variables: Cow::Borrowed(&inputs.variables),
            add_generation_prompt: inputs.ending == ChatEnding::GenerationPrompt,
            now: inputs.now.to_string(),
        })
    }
}

/// Returns the message without `null` fields, which templates would take for text, and with the model's thoughts under
/// both names that templates read.
fn normalize(message: &Map<String, Json>) -> Map<String, Json> {
    let fields = message.iter().filter(|(_, value)| !value.is_null());
    let mut message: Map<String, Json> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    if let Some(reasoning) = REASONING_FIELDS.iter().find_map(|name| message.get(*name)).cloned() {
        message.entry("thinking").or_insert_with(|| reasoning.clone());
        message.insert("reasoning_content".to_owned(), reasoning);
    }
    message
}

/// Returns the last text of a message that the model continues.
fn final_text(content: &mut Json) -> Option<&mut String> {
    match content {
        Json::String(text) => Some(text),
        Json::Array(parts) => parts.iter_mut().rev().find_map(|part| match part.get_mut("text")? {
            Json::String(text) => Some(text),
            _ => None,
        }),
        _ => None,
    }
}

/// Cuts the text at the end of the continued message, which contains `wanted`.
fn cut_at_mark(mut text: String, wanted: &str) -> Result<String, ChatTemplateError> {
    let mark = text.rfind(END_MARK.trim_end()).ok_or(ChatTemplateError::NotContinued)?;
    if !text.contains(wanted) {
        return Err(ChatTemplateError::NotContinued);
    }
    let keeps_spaces = text[mark..].starts_with(END_MARK);
    text.truncate(mark);
    if !keeps_spaces {
        text.truncate(text.trim_end_matches(python::is_space).len());
    }
    Ok(text)
}
