//! The whole response of `/v1/messages`.

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::generation::{Finish, FinishReason};
use crate::text::ToolCall;

/// The response of `POST /v1/messages`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Message {
    id: String,
    r#type: &'static str,
    role: &'static str,
    model: String,
    #[schema(value_type = Vec<Object>)]
    content: Vec<Value>,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
    #[schema(value_type = Object)]
    usage: Value,
}

impl Message {
    /// Returns the response of a model with this id.
    pub(crate) fn new(model: &str, finish: &Finish, stop_sequences: &[String]) -> Self {
        let stop_sequence = finish.stop_index.and_then(|index| stop_sequences.get(index)).cloned();
        let usage = usage(finish);
        let stop_reason = Some(stop_reason(finish));
        Self { content: blocks(finish), stop_reason, stop_sequence, usage, ..Self::empty(model) }
    }

    /// Returns the response before the answer is known.
    pub(super) fn empty(model: &str) -> Self {
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

/// Returns a block with a thought; models of this server sign nothing.
pub(super) fn thinking_block(thinking: &str) -> Value {
    json!({"type": "thinking", "thinking": thinking, "signature": ""})
}

pub(super) fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub(super) fn tool_use_block(id: &str, name: &str, input: &Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

pub(super) fn usage(finish: &Finish) -> Value {
    // Tokens from the cache are counted separately.
    let read = finish.num_prompt_tokens.saturating_sub(finish.num_cached_tokens);
    json!({"input_tokens": read, "output_tokens": finish.num_generated_tokens,
        "cache_read_input_tokens": finish.num_cached_tokens})
}

pub(super) fn stop_reason(finish: &Finish) -> &'static str {
    match finish.reason {
        FinishReason::Length => "max_tokens",
        FinishReason::StopSequence => "stop_sequence",
        FinishReason::EosToken if !finish.answer.calls.is_empty() => "tool_use",
        FinishReason::EosToken => "end_turn",
    }
}

/// Returns the blocks of thoughts, text and calls. An empty answer is one empty text block.
fn blocks(Finish { answer, .. }: &Finish) -> Vec<Value> {
    let thinking = (!answer.reasoning.is_empty()).then(|| thinking_block(&answer.reasoning));
    let has_text = !answer.content.is_empty() || answer.calls.is_empty();
    let text = has_text.then(|| text_block(&answer.content));
    // Arguments that are cut off or not valid JSON cannot be an object.
    let call = |ToolCall { id, name, arguments }: &ToolCall| {
        let input: Option<Value> = serde_json::from_str(arguments).ok();
        tool_use_block(id, name, &input.filter(Value::is_object).unwrap_or_else(|| json!({})))
    };
    thinking.into_iter().chain(text).chain(answer.calls.iter().map(call)).collect()
}
