//! `/v1/completions`: reads one or several prompts and returns their continuations.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::events::Chunks;
use super::logprobs::CompletionLogprobs;
use super::reply::{Identity, Usage, finish_reason};
use super::sampling::OpenAiSampling;
use crate::api::RequestContext;
use crate::api::nullable::null_as_false;
use crate::api::schemas;
use crate::api::sse::write_event;
use crate::error::ApiError;
use crate::generation::{Completion, FinishReason, GenerationRequest, Outcome, Piece};
use crate::validation::PromptInput;

/// The maximum number of sequences for one prompt.
const MAX_N: u32 = 128;

/// The body of `POST /v1/completions`, without the fields that all generating routes share.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    #[schema(schema_with = schemas::prompt)]
    prompt: Prompts,
    n: Option<u32>,
    /// The number of most likely tokens to return for each position, with their log probabilities.
    logprobs: Option<u32>,
    #[serde(default, deserialize_with = "null_as_false")]
    #[schema(value_type = Option<bool>)]
    echo: bool,
    #[serde(default, deserialize_with = "null_as_false")]
    #[schema(value_type = Option<bool>)]
    stream: bool,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
}

/// The options of a stream.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
pub(super) struct StreamOptions {
    #[serde(default, deserialize_with = "null_as_false")]
    #[schema(value_type = Option<bool>)]
    pub(super) include_usage: bool,
}

/// The prompts of a request, in one of the four forms of OpenAI's API.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of lists of token ids"
)]
enum Prompts {
    Text(String),
    TokenIds(Vec<u32>),
    Texts(Vec<String>),
    ListsOfTokenIds(Vec<Vec<u32>>),
}

/// The whole response, if `stream` is false.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TextCompletion {
    #[serde(flatten)]
    identity: Identity,
    choices: Vec<Choice>,
    usage: Usage,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompletionChoice)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

/// The contents of a request, converted to generation requests.
#[derive(Debug)]
pub(crate) struct CompletionPlan {
    /// One request for each prompt.
    pub(crate) requests: Vec<GenerationRequest>,
    pub(crate) is_stream: bool,
    pub(crate) form: CompletionForm,
}

/// The options of the response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompletionForm {
    pub(crate) num_per_prompt: usize,
    has_echo: bool,
    /// True if the client wants no generated token.
    is_prompt_only: bool,
    has_logprobs: bool,
    has_usage: bool,
}

impl CompletionRequest {
    /// Converts the request.
    ///
    /// # Errors
    /// When there are more prompts, or sequences for a prompt, than allowed, `n` is 0, or `echo` is combined with
    /// `stream`.
    pub(crate) fn into_plan(
        self,
        mut sampling: OpenAiSampling,
        (context, max_prompts): (&RequestContext, u32),
    ) -> Result<CompletionPlan, ApiError> {
        let prompts = match self.prompt {
            Prompts::Text(text) => vec![PromptInput::Text(text.into())],
            Prompts::TokenIds(token_ids) => vec![PromptInput::TokenIds(token_ids.into())],
            Prompts::Texts(texts) => texts.into_iter().map(|text| PromptInput::Text(text.into())).collect(),
            Prompts::ListsOfTokenIds(lists) => lists.into_iter().map(|ids| PromptInput::TokenIds(ids.into())).collect(),
        };
        if prompts.len() > max_prompts as usize {
            return Err(ApiError::TooManyPrompts { limit: max_prompts });
        }
        let n = num_choices(self.n)?;
        let wants_prompt_logprobs = self.echo && self.logprobs.is_some();
        if self.echo && self.stream {
            return Err(ApiError::NotSupported { what: "`echo` with `stream`".to_owned() });
        }
        // A client that sends `echo` and a maximum of 0 tokens wants only the prompt. The server generates one token,
        // so that the model reads the prompt, and leaves this token out of the response.
        let is_prompt_only = self.echo && sampling.replace_max_tokens(0, 1);
        let options = sampling.into_options(self.logprobs.unwrap_or(0), wants_prompt_logprobs);
        let request = |prompt: PromptInput| {
            let RequestContext { received_at, request_id, tenant: _ } = context.clone();
            GenerationRequest { prompt, options: options.clone(), num_choices: n, received_at, request_id }
        };
        Ok(CompletionPlan {
            requests: prompts.into_iter().map(request).collect(),
            is_stream: self.stream,
            form: CompletionForm {
                num_per_prompt: n as usize,
                has_echo: self.echo,
                is_prompt_only,
                has_logprobs: self.logprobs.is_some(),
                has_usage: self.stream_options.unwrap_or_default().include_usage,
            },
        })
    }
}

/// Returns the number of sequences for a prompt.
///
/// # Errors
/// When the number is 0 or exceeds [`MAX_N`].
pub(super) fn num_choices(n: Option<u32>) -> Result<u32, ApiError> {
    let n = n.unwrap_or(1);
    if n == 0 || n > MAX_N {
        return Err(ApiError::BodyShape(format!("n: must be between 1 and {MAX_N}. Given: {n}")));
    }
    Ok(n)
}

impl CompletionForm {
    /// Removes the generated token from an outcome if the client wants only the prompt.
    pub(crate) fn trim(self, outcome: &mut Outcome) {
        if self.is_prompt_only {
            let Completion { finish, prompt: _, tokens, top_tokens } = &mut outcome.best;
            finish.generated_text.clear();
            finish.num_generated_tokens = 0;
            finish.reason = FinishReason::Length;
            tokens.clear();
            top_tokens.clear();
        }
    }
}

impl TextCompletion {
    /// Returns the response. The choices are the outcomes of the first prompt, then those of the second, and so on.
    /// With `echo`, each text begins with its prompt.
    pub(crate) fn new(identity: Identity, form: CompletionForm, prompts: &[Arc<str>], outcomes: Vec<Outcome>) -> Self {
        let mut usage = Usage::default();
        let choice = |(index, outcome): (usize, Outcome)| {
            let prompt = prompts.get(index / form.num_per_prompt).map_or("", |prompt| &**prompt);
            let completion = outcome.best;
            usage.add(&completion.finish, index.is_multiple_of(form.num_per_prompt));
            let logprobs = form.has_logprobs.then(|| {
                let (mut logprobs, mut offset) = (CompletionLogprobs::default(), 0);
                if form.has_echo {
                    logprobs.push_prompt(&mut offset, &completion.prompt);
                    offset = prompt.chars().count();
                }
                for (index, token) in completion.tokens.iter().enumerate() {
                    let top_tokens = completion.top_tokens.get(index).map_or(&[][..], Vec::as_slice);
                    logprobs.push_token(&mut offset, token, top_tokens);
                }
                logprobs
            });
            let finish_reason = Some(finish_reason(completion.finish.reason, false));
            let echo = if form.has_echo { prompt } else { "" };
            let text = [echo, &completion.finish.generated_text].concat();
            Choice { index, text, logprobs, finish_reason }
        };
        let choices = outcomes.into_iter().enumerate().map(choice).collect();
        Self { identity, choices, usage }
    }
}

/// The response as a stream.
#[derive(Debug)]
pub(crate) struct CompletionChunks {
    identity: Identity,
    form: CompletionForm,
    usage: Usage,
    /// The offset of the next token in the text of each choice, in characters. Counted only if log-probabilities are
    /// wanted.
    offsets: Vec<usize>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TextCompletionChunk)]
pub(crate) struct Chunk<'a> {
    #[serde(flatten)]
    identity: &'a Identity,
    choices: &'a [Choice],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

impl CompletionChunks {
    pub(crate) fn new(identity: Identity, form: CompletionForm, num_choices: usize) -> Self {
        Self { identity, form, usage: Usage::default(), offsets: vec![0; num_choices] }
    }
}

impl Chunks for CompletionChunks {
    fn begin(&mut self, _chunk: &mut Vec<u8>) {}

    fn piece(&mut self, chunk: &mut Vec<u8>, index: usize, piece: Piece) {
        let Piece { token, top_tokens, delta, finish, index: _, events: _ } = piece;
        if let Some(finish) = &finish {
            self.usage.add(finish, index.is_multiple_of(self.form.num_per_prompt));
        }
        if delta.is_empty() && finish.is_none() && !self.form.has_logprobs {
            return;
        }
        let logprobs = self.form.has_logprobs.then(|| {
            let mut logprobs = CompletionLogprobs::default();
            logprobs.push_token(&mut self.offsets[index], &token, &top_tokens);
            logprobs
        });
        let finish_reason = finish.map(|finish| finish_reason(finish.reason, false));
        let choices = [Choice { index, text: delta, logprobs, finish_reason }];
        write_event(chunk, &Chunk { identity: &self.identity, choices: &choices, usage: None });
    }

    fn end(&mut self, chunk: &mut Vec<u8>) {
        if self.form.has_usage {
            write_event(chunk, &Chunk { identity: &self.identity, choices: &[], usage: Some(self.usage) });
        }
    }
}
