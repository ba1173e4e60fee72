//! A compiled template, in the process that renders.
//!
//! A template that takes too much memory or time, or nests values too deeply, ends the process (`renderer`).

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use jiff::civil::DateTime;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::{ChatTemplateError, SpecialTokens, environment, source};

/// The name of the only template of an environment, used in errors.
const NAME: &str = "chat template";

/// A template that is not compiled, with the special tokens that it can name.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TemplateSource<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) special_tokens: SpecialTokens,
}

/// The inputs of one rendering.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Conversation<'a> {
    pub(super) messages: Cow<'a, [Map<String, Json>]>,
    pub(super) tools: Cow<'a, Option<Vec<Json>>>,
    pub(super) documents: Cow<'a, Option<Vec<Json>>>,
    pub(super) variables: Cow<'a, Map<String, Json>>,
    pub(super) add_generation_prompt: bool,
    /// The time that `strftime_now` formats, in the form of ISO 8601.
    pub(super) now: String,
}

/// A template that can be rendered.
#[derive(Debug)]
pub(super) struct Program {
    environment: Environment<'static>,
    special_tokens: SpecialTokens,
}

/// The message of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

impl Program {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`ChatTemplateError::Unreadable`] when the source is not valid Jinja. Unknown functions, filters and tests are
    /// errors when they are rendered.
    pub(super) fn compile(source: TemplateSource<'_>) -> Result<Self, ChatTemplateError> {
        let compile = || -> Result<_, Error> {
            let mut environment = environment::environment();
            environment.add_template_owned(NAME, source::prepare(&source.text))?;
            Ok(environment)
        };
        let environment = guarded(compile)?.map_err(|error| ChatTemplateError::Unreadable(error.to_string()))?;
        Ok(Self { environment, special_tokens: source.special_tokens })
    }

    /// Returns the text of a conversation.
    ///
    /// # Errors
    /// The template's own error message, or the reason why rendering failed.
    pub(super) fn render(&self, conversation: &Conversation<'_>) -> Result<String, ChatTemplateError> {
        let Conversation { messages, tools, documents, variables, add_generation_prompt, now } = conversation;
        let now: DateTime = now.parse().map_err(|error| ChatTemplateError::Failed(format!("{now}: {error}")))?;
        let own = [
            ("strftime_now", environment::strftime_at(now)),
            ("messages", Value::from_serialize(messages)),
            ("tools", Value::from_serialize(tools)),
            ("documents", Value::from_serialize(documents)),
            ("add_generation_prompt", Value::from(*add_generation_prompt)),
        ];
        let special_tokens = self.special_tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token)));
        let variables = variables.iter().map(|(name, value)| (name.as_str(), Value::from_serialize(value)));
        let context: Value = special_tokens.chain(variables).chain(own).collect();
        guarded(|| self.environment.get_template(NAME)?.render(context))?.map_err(|error| failure(&error))
    }
}

/// Runs `work`, in which minijinja may panic.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, ChatTemplateError> {
    let defect = "the template failed because of a defect of this server";
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| ChatTemplateError::Failed(defect.to_owned()))
}

fn failure(error: &Error) -> ChatTemplateError {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    if let Some(Raised(sentence)) = causes.filter_map(|cause| cause.downcast_ref()).next() {
        return ChatTemplateError::Raised(sentence.clone());
    }
    match error.kind() {
        ErrorKind::OutOfFuel => ChatTemplateError::TooManySteps,
        _ => ChatTemplateError::Failed(error.to_string()),
    }
}
