//! `/v1/chat/completions`: reads a conversation and returns the assistant's next message.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::completion::{StreamOptions, num_choices};
use super::events::Chunks;
use super::logprobs::ChatLogprobs;
use super::reply::{Identity, Usage, finish_reason};
use super::sampling::OpenAiSampling;
use super::tool_calls::{CallDelta, MessageCall};
use super::tools::{ToolFields, ToolUse};
use crate::api::bounded;
use crate::api::nullable::null_as_false;
use crate::api::schemas;
use crate::api::sse::write_event;
use crate::api::{ChatRequest, RequestContext};
use crate::error::ApiError;
use crate::generation::{GenerationRequest, Outcome, Piece};
use crate::text::{Answer, AnswerEvent, RenderedChat};
use crate::validation::PromptInput;

const ASSISTANT: &str = "assistant";

/// The body of `POST /v1/chat/completions`, without the fields that all generating routes share.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct ChatCompletionRequest {
    #[serde(deserialize_with = "bounded::messages")]
    #[schema(schema_with = schemas::messages)]
    messages: Vec<Map<String, Value>>,
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    #[schema(value_type = Option<Vec<Object>>)]
    documents: Option<Vec<Value>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    #[schema(ignore)]
    chat_template: Option<Value>,
    reasoning_effort: Option<String>,
    n: Option<u32>,
    #[serde(default, deserialize_with = "null_as_false")]
    #[schema(value_type = Option<bool>)]
    logprobs: bool,
    top_logprobs: Option<u32>,
    #[serde(default, deserialize_with = "null_as_false")]
    #[schema(value_type = Option<bool>)]
    stream: bool,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
}

/// The whole response, if `stream` is false.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    #[serde(flatten)]
    identity: Identity,
    choices: Vec<Choice>,
    usage: Usage,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChoice)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatAnswer)]
struct Message {
    role: &'static str,
    /// The text; `null` if the message has tool calls and no text.
    content: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<MessageCall>,
}

/// The contents of a request, without its conversation.
#[derive(Debug)]
pub(crate) struct ChatPlan {
    pub(crate) is_stream: bool,
    pub(crate) form: ChatForm,
    pub(crate) num_choices: u32,
    sampling: OpenAiSampling,
    top_logprobs: u32,
    tools: ToolUse,
}

/// The options of the response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChatForm {
    has_logprobs: bool,
    has_usage: bool,
}

impl ChatCompletionRequest {
    /// Splits the request into its conversation and the rest.
    ///
    /// # Errors
    /// When fields contradict each other, a tool or the tool choice is malformed, or the number of choices is not
    /// allowed.
    pub(crate) fn into_plan(self, sampling: OpenAiSampling) -> Result<(ChatRequest, ChatPlan), ApiError> {
        let num_choices = num_choices(self.n)?;
        if self.top_logprobs.is_some_and(|count| count > 0) && !self.logprobs {
            return Err(ApiError::BodyShape("top_logprobs: needs logprobs to be true".to_owned()));
        }
        let mut variables = self.chat_template_kwargs.unwrap_or_default();
        if let Some(effort) = self.reasoning_effort {
            variables.entry("reasoning_effort").or_insert(Value::String(effort));
        }
        let (tools, tool_choice, parallel_tool_calls) = (self.tools, self.tool_choice, self.parallel_tool_calls);
        let tools = ToolFields { tools, tool_choice, parallel_tool_calls }.into_use()?;
        let chat = ChatRequest {
            messages: self.messages,
            tools: tools.tools.clone(),
            documents: self.documents,
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            chat_template_kwargs: Some(variables),
            chat_template: self.chat_template,
        };
        let has_usage = self.stream_options.unwrap_or_default().include_usage;
        let form = ChatForm { has_logprobs: self.logprobs, has_usage };
        let top_logprobs = self.top_logprobs.unwrap_or(0);
        Ok((chat, ChatPlan { is_stream: self.stream, form, num_choices, sampling, top_logprobs, tools }))
    }
}

impl ChatPlan {
    /// Returns the generation request that continues a conversation.
    ///
    /// # Errors
    /// When the grammar that enforces the tool calls is too large.
    pub(crate) fn request(
        self,
        RenderedChat { text, answer_form }: RenderedChat,
        context: RequestContext,
    ) -> Result<GenerationRequest, ApiError> {
        let mut options = self.sampling.into_options(self.top_logprobs, false);
        self.tools.apply(answer_form, &mut options)?;
        let RequestContext { received_at, request_id, tenant: _ } = context;
        let (prompt, num_choices) = (PromptInput::Rendered(text.into()), self.num_choices);
        Ok(GenerationRequest { prompt, options, num_choices, received_at, request_id })
    }
}

impl Message {
    fn new(answer: Answer) -> Self {
        let content = Some(answer.content).filter(|content| !content.is_empty() || answer.calls.is_empty());
        let tool_calls = answer.calls.into_iter().map(MessageCall::from).collect();
        Self { role: ASSISTANT, content, reasoning_content: answer.reasoning, tool_calls }
    }
}

impl ChatCompletion {
    /// Returns the response.
    pub(crate) fn new(identity: Identity, form: ChatForm, outcomes: Vec<Outcome>) -> Self {
        let mut usage = Usage::default();
        let choice = |(index, outcome): (usize, Outcome)| {
            let mut completion = outcome.best;
            usage.add(&completion.finish, index == 0);
            let top_tokens = |index: usize| completion.top_tokens.get(index).map_or(&[][..], Vec::as_slice);
            let tokens = completion.tokens.iter().enumerate().map(|(index, token)| (token, top_tokens(index)));
            let logprobs = form.has_logprobs.then(|| ChatLogprobs::new(tokens));
            let answer = std::mem::take(&mut completion.finish.answer);
            let finish_reason = finish_reason(completion.finish.reason, !answer.calls.is_empty());
            Choice { index, message: Message::new(answer), logprobs, finish_reason }
        };
        let choices = outcomes.into_iter().enumerate().map(choice).collect();
        Self { identity, choices, usage }
    }
}

/// The response as a stream.
#[derive(Debug)]
pub(crate) struct ChatChunks {
    identity: Identity,
    form: ChatForm,
    usage: Usage,
    /// The number of tool calls that have begun, for each choice.
    num_calls: Vec<usize>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatCompletionChunk)]
pub(crate) struct Chunk<'a> {
    #[serde(flatten)]
    identity: &'a Identity,
    choices: &'a [ChunkChoice],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = ChatChunkChoice)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = ChatDelta)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<CallDelta>>)]
    tool_calls: Option<[CallDelta; 1]>,
}

impl ChatChunks {
    pub(crate) fn new(identity: Identity, form: ChatForm, num_choices: usize) -> Self {
        Self { identity, form, usage: Usage::default(), num_calls: vec![0; num_choices] }
    }

    /// Returns the change that an event makes to a choice; `None` if the event changes nothing.
    fn delta(&mut self, index: usize, event: AnswerEvent) -> Option<Delta> {
        let num_calls = &mut self.num_calls[index];
        let tool_call = match event {
            AnswerEvent::Reasoning(text) => return Some(Delta { reasoning_content: Some(text), ..Delta::default() }),
            AnswerEvent::Content(text) => return Some(Delta { content: Some(text), ..Delta::default() }),
            AnswerEvent::CallStarted { id, name } => {
                *num_calls += 1;
                CallDelta::first(*num_calls - 1, id, name)
            }
            AnswerEvent::Arguments(piece) => CallDelta::more(*num_calls - 1, piece),
            AnswerEvent::CallEnded => return None,
        };
        Some(Delta { tool_calls: Some([tool_call]), ..Delta::default() })
    }

    fn write(&self, chunk: &mut Vec<u8>, choice: ChunkChoice) {
        write_event(chunk, &Chunk { identity: &self.identity, choices: &[choice], usage: None });
    }
}

impl Chunks for ChatChunks {
    /// Writes the role of each choice, which comes before the content.
    fn begin(&mut self, chunk: &mut Vec<u8>) {
        for index in 0..self.num_calls.len() {
            let delta = Delta { role: Some(ASSISTANT), content: Some(String::new()), ..Delta::default() };
            self.write(chunk, ChunkChoice { index, delta, ..ChunkChoice::default() });
        }
    }

    /// Writes the chunks of a token. If log-probabilities are wanted, the first of these chunks has that of the token.
    fn piece(&mut self, chunk: &mut Vec<u8>, index: usize, piece: Piece) {
        let Piece { token, top_tokens, events, finish, .. } = piece;
        let mut logprobs = self.form.has_logprobs.then(|| ChatLogprobs::new([(&token, top_tokens.as_slice())]));
        for event in events {
            let Some(delta) = self.delta(index, event) else { continue };
            self.write(chunk, ChunkChoice { index, delta, logprobs: logprobs.take(), finish_reason: None });
        }
        if logprobs.is_some() {
            let delta = Delta { content: Some(String::new()), ..Delta::default() };
            self.write(chunk, ChunkChoice { index, delta, logprobs, finish_reason: None });
        }
        if let Some(finish) = finish {
            self.usage.add(&finish, index == 0);
            let finish_reason = Some(finish_reason(finish.reason, self.num_calls[index] > 0));
            self.write(chunk, ChunkChoice { index, finish_reason, ..ChunkChoice::default() });
        }
    }

    fn end(&mut self, chunk: &mut Vec<u8>) {
        if self.form.has_usage {
            write_event(chunk, &Chunk { identity: &self.identity, choices: &[], usage: Some(self.usage) });
        }
    }
}
