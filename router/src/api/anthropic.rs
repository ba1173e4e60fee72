//! Anthropic's dialect: `/v1/messages`, whole and as events, and `/v1/messages/count_tokens`.
//!
//! Text only: blocks of images, documents and tools are errors that name them.

use std::task::{Context, Poll, ready};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::nullable::null_as_false;
use super::openai::OpenAiSampling;
use super::sse::Events;
use super::{ChatRequest, RequestContext};
use crate::error::{AnthropicError, ApiError};
use crate::generation::{Finish, Generation, GenerationRequest, Piece};
use crate::scheduler::FinishReason;
use crate::validation::Prompt;

/// Body of `POST /v1/messages`; of `count_tokens` too, where only the conversation counts.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct MessagesRequest {
    messages: Vec<Map<String, Value>>,
    /// A text, or a list of blocks with texts.
    system: Option<Value>,
    max_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    #[serde(default)]
    stop_sequences: Vec<String>,
    #[serde(default, deserialize_with = "null_as_false")]
    stream: bool,
    tools: Option<Vec<Value>>,
    thinking: Option<Value>,
}

/// What a request asks for, but for its conversation.
#[derive(Debug)]
pub(crate) struct MessagesPlan {
    pub(crate) is_stream: bool,
    pub(crate) stop_sequences: Vec<String>,
    pub(crate) sampling: OpenAiSampling,
}

/// Answer of `POST /v1/messages/count_tokens`.
#[derive(Debug, Serialize)]
pub(crate) struct TokenCount {
    pub(crate) input_tokens: usize,
}

/// The answer in one piece.
#[derive(Debug, Serialize)]
pub(crate) struct Message {
    id: String,
    r#type: &'static str,
    role: &'static str,
    model: String,
    content: Vec<Value>,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
    usage: Value,
}

impl MessagesRequest {
    /// The conversation.
    ///
    /// # Errors
    /// When it asks for what is not done here.
    pub(crate) fn chat(&self) -> Result<ChatRequest, ApiError> {
        let is_thinking = self.thinking.as_ref().is_some_and(|thinking| thinking["type"] != "disabled");
        let what = match &self.tools {
            Some(tools) if !tools.is_empty() => "`tools`",
            _ if is_thinking => "`thinking`",
            _ => "",
        };
        if !what.is_empty() {
            return Err(ApiError::NotSupported { what: what.to_owned() });
        }
        let system = self.system.clone().filter(|system| !system.is_null());
        let system = system.map(|content| Map::from_iter([role("system"), ("content".to_owned(), content)]));
        Ok(ChatRequest {
            messages: system.into_iter().chain(self.messages.iter().cloned()).collect(),
            tools: None,
            documents: None,
            add_generation_prompt: None,
            continue_final_message: None,
            chat_template_kwargs: None,
            chat_template: None,
        })
    }

    /// Everything else.
    ///
    /// # Errors
    /// When the field that Anthropic's API demands is missing.
    pub(crate) fn into_plan(self) -> Result<MessagesPlan, ApiError> {
        let max_tokens = self.max_tokens.ok_or_else(|| ApiError::BodyShape("missing field `max_tokens`".to_owned()))?;
        let sampling = OpenAiSampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            stop: self.stop_sequences.clone(),
            max_tokens: Some(max_tokens),
            ..OpenAiSampling::default()
        };
        Ok(MessagesPlan { is_stream: self.stream, stop_sequences: self.stop_sequences, sampling })
    }
}

impl MessagesPlan {
    /// The generation that goes on with the text of the conversation.
    pub(crate) fn request(&self, text: &str, context: RequestContext) -> GenerationRequest {
        let options = self.sampling.clone().into_options(0, false);
        let RequestContext { received_at, request_id } = context;
        GenerationRequest { prompt: Prompt::Rendered(text.to_owned()), options, received_at, request_id }
    }
}

impl Message {
    /// The answer, of a model with this id.
    pub(crate) fn new(model: &str, finish: &Finish, stop_sequences: &[String]) -> Self {
        let content = vec![json!({"type": "text", "text": finish.generated_text})];
        let stop_sequence = finish.stop_index.and_then(|index| stop_sequences.get(index)).cloned();
        let usage = usage(finish);
        let stop_reason = Some(stop_reason(finish.reason));
        Self { content, stop_reason, stop_sequence, usage, ..Self::empty(model) }
    }

    fn empty(model: &str) -> Self {
        Self {
            id: format!("msg_{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..)),
            r#type: "message",
            role: "assistant",
            model: model.to_owned(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: json!({"input_tokens": 0, "output_tokens": 0}),
        }
    }
}

fn role(role: &str) -> (String, Value) {
    ("role".to_owned(), Value::from(role))
}

fn usage(finish: &Finish) -> Value {
    json!({"input_tokens": finish.num_prompt_tokens, "output_tokens": finish.num_generated_tokens,
        "cache_read_input_tokens": finish.num_cached_tokens})
}

fn stop_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "max_tokens",
        FinishReason::EosToken => "end_turn",
        FinishReason::StopSequence => "stop_sequence",
    }
}

/// The answer as events, each with its name.
#[derive(Debug)]
pub(crate) struct MessageEvents {
    generation: Generation,
    model: String,
    stop_sequences: Vec<String>,
    has_begun: bool,
    has_ended: bool,
}

impl MessageEvents {
    pub(crate) fn new(generation: Generation, model: &str, stop_sequences: Vec<String>) -> Self {
        Self { generation, model: model.to_owned(), stop_sequences, has_begun: false, has_ended: false }
    }

    fn piece(&mut self, chunk: &mut Vec<u8>, piece: Piece) {
        if !piece.delta.is_empty() {
            let delta = json!({"type": "text_delta", "text": piece.delta});
            write(chunk, &json!({"type": "content_block_delta", "index": 0, "delta": delta}));
        }
        if let Some(finish) = piece.finish {
            let stop_sequence = finish.stop_index.and_then(|index| self.stop_sequences.get(index));
            let delta = json!({"stop_reason": stop_reason(finish.reason), "stop_sequence": stop_sequence});
            write(chunk, &json!({"type": "content_block_stop", "index": 0}));
            write(chunk, &json!({"type": "message_delta", "delta": delta, "usage": usage(&finish)}));
            write(chunk, &json!({"type": "message_stop"}));
            self.has_ended = true;
        }
    }
}

impl Events for MessageEvents {
    fn poll_events(&mut self, cx: &mut Context<'_>, chunk: &mut Vec<u8>) -> Poll<Option<()>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            write(chunk, &json!({"type": "message_start", "message": Message::empty(&self.model)}));
            let block = json!({"type": "text", "text": ""});
            write(chunk, &json!({"type": "content_block_start", "index": 0, "content_block": block}));
        }
        match ready!(self.generation.poll_next(cx)) {
            None => return Poll::Ready(None),
            Some(Ok(piece)) => self.piece(chunk, piece),
            Some(Err(failure)) => {
                self.has_ended = true;
                write(chunk, &AnthropicError::from(ApiError::of_stream(failure)).body());
            }
        }
        Poll::Ready(Some(()))
    }
}

/// An event, whose name is its type.
fn write(chunk: &mut Vec<u8>, event: &Value) {
    let name = event["type"].as_str().unwrap_or_default();
    chunk.extend_from_slice(format!("event: {name}\ndata: {event}\n\n").as_bytes());
}
