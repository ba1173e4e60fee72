//! The parts that all responses have: an id, the creation time, the model, the token usage and the finish reasons. Also
//! the responses of `/v1/models`.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use utoipa::ToSchema;

use crate::generation::{Finish, FinishReason};

/// The fields that identify a response.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Identity {
    pub(super) id: String,
    pub(super) object: &'static str,
    /// The time of the response, in seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) system_fingerprint: String,
}

/// The numbers of prompt tokens and of generated tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptTokensDetails,
    #[serde(skip_serializing_if = "CompletionTokensDetails::is_empty")]
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
struct CompletionTokensDetails {
    reasoning_tokens: u32,
}

/// The response of `GET /v1/models`: OpenAI's list, with the fields of Anthropic's pages.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Models {
    object: &'static str,
    data: Vec<Model>,
    has_more: bool,
    first_id: String,
    last_id: String,
}

/// The response of `GET /v1/models/{id}`, and an entry of the response of `GET /v1/models`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: String,
    max_model_len: u32,
    /// Like `display_name` and `created_at`, this field is from Anthropic's API.
    #[serde(rename = "type")]
    kind: &'static str,
    display_name: String,
    created_at: &'static str,
}

impl Identity {
    /// Creates the identity of a response. `object` is the kind of response, such as `chat.completion`; the random id
    /// begins with `prefix`.
    pub(crate) fn new((object, prefix): (&'static str, &str), model: &str, system_fingerprint: &str) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let id = format!("{prefix}-{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        Self { id, object, created, model: model.to_owned(), system_fingerprint: system_fingerprint.to_owned() }
    }
}

impl Usage {
    /// Adds the tokens of a sequence. Sequences with the same prompt share the prompt's tokens, which are counted once,
    /// with the first of these sequences.
    pub(super) fn add(&mut self, finish: &Finish, is_first_of_prompt: bool) {
        if is_first_of_prompt {
            self.prompt_tokens += finish.num_prompt_tokens;
            self.prompt_tokens_details.cached_tokens += finish.num_cached_tokens;
        }
        self.completion_tokens += finish.num_generated_tokens;
        self.completion_tokens_details.reasoning_tokens += finish.answer.num_reasoning_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

impl CompletionTokensDetails {
    fn is_empty(&self) -> bool {
        self.reasoning_tokens == 0
    }
}

impl Model {
    /// Describes a model whose prompt and answer together may have `max_total_tokens` tokens.
    pub(crate) fn new(model_id: &str, max_total_tokens: u32) -> Self {
        let name = || model_id.to_owned();
        let (id, owned_by, display_name) = (name(), name(), name());
        let (object, kind, max_model_len) = ("model", "model", max_total_tokens);
        // The model's creation time is not known, so both fields contain the start of the Unix epoch.
        let (created, created_at) = (0, "1970-01-01T00:00:00Z");
        Self { id, object, created, owned_by, max_model_len, kind, display_name, created_at }
    }
}

impl Models {
    /// Returns the list of these models.
    pub(crate) fn new(models: Vec<Model>) -> Self {
        let [first_id, last_id] =
            [models.first(), models.last()].map(|model| model.map(|model| model.id.clone()).unwrap_or_default());
        Self { object: "list", data: models, has_more: false, first_id, last_id }
    }
}

/// Returns OpenAI's word for the reason. For OpenAI, an end-of-sequence token and a stop sequence are the same reason,
/// `stop`, but an answer with tool calls has a reason of its own.
pub(super) fn finish_reason(reason: FinishReason, has_calls: bool) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::EosToken | FinishReason::StopSequence if has_calls => "tool_calls",
        FinishReason::EosToken | FinishReason::StopSequence => "stop",
    }
}
