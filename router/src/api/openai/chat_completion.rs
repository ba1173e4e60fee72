//! `/v1/chat/completions`: a conversation, and the assistant's next message.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::completion::{StreamOptions, num_choices};
use super::events::Chunks;
use super::logprobs::ChatLogprobs;
use super::reply::{Identity, Usage, finish_reason};
use super::sampling::OpenAiSampling;
use crate::api::nullable::null_as_false;
use crate::api::sse::write_event;
use crate::api::{ChatRequest, RequestContext};
use crate::error::ApiError;
use crate::generation::{GenerationRequest, Outcome, Piece};
use crate::validation::Prompt;

const ASSISTANT: &str = "assistant";

/// What is particular to the route.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ChatCompletionRequest {
    messages: Vec<Map<String, Value>>,
    documents: Option<Vec<Value>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    chat_template: Option<Value>,
    reasoning_effort: Option<String>,
    n: Option<u32>,
    #[serde(default, deserialize_with = "null_as_false")]
    logprobs: bool,
    top_logprobs: Option<u32>,
    #[serde(default, deserialize_with = "null_as_false")]
    stream: bool,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
}

/// The answer in one piece.
#[derive(Debug, Serialize)]
pub(crate) struct ChatCompletion {
    #[serde(flatten)]
    identity: Identity,
    choices: Vec<Choice>,
    usage: Usage,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
}

#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

/// What a request asks for, but for its conversation.
#[derive(Debug)]
pub(crate) struct ChatPlan {
    pub(crate) is_stream: bool,
    pub(crate) form: ChatForm,
    num_choices: u32,
    sampling: OpenAiSampling,
    top_logprobs: u32,
}

/// How the answer looks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChatForm {
    has_logprobs: bool,
    has_usage: bool,
}

impl ChatCompletionRequest {
    /// The conversation, and everything else.
    ///
    /// # Errors
    /// When fields contradict each other, or there are to be more choices than is allowed.
    pub(crate) fn into_plan(self, sampling: OpenAiSampling) -> Result<(ChatRequest, ChatPlan), ApiError> {
        let num_choices = num_choices(self.n)?;
        if self.top_logprobs.is_some_and(|count| count > 0) && !self.logprobs {
            return Err(ApiError::BodyShape("top_logprobs: needs logprobs to be true".to_owned()));
        }
        let mut variables = self.chat_template_kwargs.unwrap_or_default();
        if let Some(effort) = self.reasoning_effort {
            variables.entry("reasoning_effort").or_insert(Value::String(effort));
        }
        let chat = ChatRequest {
            messages: self.messages,
            tools: None,
            documents: self.documents,
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            chat_template_kwargs: Some(variables),
            chat_template: self.chat_template,
        };
        let has_usage = self.stream_options.unwrap_or_default().include_usage;
        let form = ChatForm { has_logprobs: self.logprobs, has_usage };
        let top_logprobs = self.top_logprobs.unwrap_or(0);
        Ok((chat, ChatPlan { is_stream: self.stream, form, num_choices, sampling, top_logprobs }))
    }
}

impl ChatPlan {
    /// One for each choice, to go on with the text of the conversation.
    pub(crate) fn requests(&self, text: &str, context: &RequestContext) -> Vec<GenerationRequest> {
        let options = self.sampling.clone().into_options(self.top_logprobs, false);
        let request = |number: u32| {
            let mut options = options.clone();
            options.sampling.seed = options.sampling.seed.wrapping_add(number.into());
            let RequestContext { received_at, request_id } = context.clone();
            GenerationRequest { prompt: Prompt::Rendered(text.to_owned()), options, received_at, request_id }
        };
        (0..self.num_choices).map(request).collect()
    }
}

impl ChatCompletion {
    /// The answer.
    pub(crate) fn new(identity: Identity, form: ChatForm, outcomes: Vec<Outcome>) -> Self {
        let mut usage = Usage::default();
        let choice = |(index, outcome): (usize, Outcome)| {
            let completion = outcome.best;
            usage.add(&completion.finish, index == 0);
            let top_tokens = |index: usize| completion.top_tokens.get(index).map_or(&[][..], Vec::as_slice);
            let tokens = completion.tokens.iter().enumerate().map(|(index, token)| (token, top_tokens(index)));
            let logprobs = form.has_logprobs.then(|| ChatLogprobs::new(tokens));
            let finish_reason = finish_reason(completion.finish.reason);
            let message = Message { role: ASSISTANT, content: completion.finish.generated_text };
            Choice { index, message, logprobs, finish_reason }
        };
        let choices = outcomes.into_iter().enumerate().map(choice).collect();
        Self { identity, choices, usage }
    }
}

/// The answer in pieces.
#[derive(Debug)]
pub(crate) struct ChatChunks {
    identity: Identity,
    form: ChatForm,
    usage: Usage,
    num_choices: usize,
}

#[derive(Debug, Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    identity: &'a Identity,
    choices: &'a [ChunkChoice],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Debug, Default, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

impl ChatChunks {
    pub(crate) fn new(identity: Identity, form: ChatForm, num_choices: usize) -> Self {
        Self { identity, form, usage: Usage::default(), num_choices }
    }

    fn write(&self, chunk: &mut Vec<u8>, choice: ChunkChoice) {
        write_event(chunk, &Chunk { identity: &self.identity, choices: &[choice], usage: None });
    }
}

impl Chunks for ChatChunks {
    /// Who speaks comes before what is said.
    fn begin(&mut self, chunk: &mut Vec<u8>) {
        for index in 0..self.num_choices {
            let delta = Delta { role: Some(ASSISTANT), content: Some(String::new()) };
            self.write(chunk, ChunkChoice { index, delta, ..ChunkChoice::default() });
        }
    }

    fn piece(&mut self, chunk: &mut Vec<u8>, index: usize, piece: Piece) {
        let Piece { token, top_tokens, delta, finish, index: _ } = piece;
        if !delta.is_empty() || self.form.has_logprobs {
            let logprobs = self.form.has_logprobs.then(|| ChatLogprobs::new([(&token, top_tokens.as_slice())]));
            let delta = Delta { role: None, content: Some(delta) };
            self.write(chunk, ChunkChoice { index, delta, logprobs, finish_reason: None });
        }
        if let Some(finish) = finish {
            self.usage.add(&finish, index == 0);
            let finish_reason = Some(finish_reason(finish.reason));
            self.write(chunk, ChunkChoice { index, finish_reason, ..ChunkChoice::default() });
        }
    }

    fn end(&mut self, chunk: &mut Vec<u8>) {
        if self.form.has_usage {
            write_event(chunk, &Chunk { identity: &self.identity, choices: &[], usage: Some(self.usage) });
        }
    }
}
