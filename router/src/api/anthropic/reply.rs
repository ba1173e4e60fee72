//! The whole response of `/v1/messages`, and the blocks, usage and stop reason that it shares with streams.

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
    /// Returns the response of the model with the id `model`, with the answer of `finish`.
    pub(crate) fn new(model: &str, finish: &Finish, stop_sequences: &[String]) -> Self {
        let stop_sequence = finish.stop_index.and_then(|index| stop_sequences.get(index)).cloned();
        let usage = usage(finish);
        let stop_reason = Some(stop_reason(finish));
        Self { content: blocks(finish), stop_reason, stop_sequence, usage, ..Self::empty(model) }
    }

    /// Returns a response without content, with which a stream begins.
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

/// Returns a block with a thought. The signature is empty, because this server does not sign thoughts.
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
    // As in Anthropic's API, `input_tokens` does not count the tokens read from the cache.
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

/// Returns the blocks of an answer: thoughts, text, tool calls. An answer without text and calls has an empty text
/// block.
fn blocks(Finish { answer, .. }: &Finish) -> Vec<Value> {
    let thinking = (!answer.reasoning.is_empty()).then(|| thinking_block(&answer.reasoning));
    let has_text = !answer.content.is_empty() || answer.calls.is_empty();
    let text = has_text.then(|| text_block(&answer.content));
    // Arguments that are cut off, or not a JSON object for another reason, become an empty object.
    let call = |ToolCall { id, name, arguments }: &ToolCall| {
        let input: Option<Value> = serde_json::from_str(arguments).ok();
        tool_use_block(id, name, &input.filter(Value::is_object).unwrap_or_else(|| json!({})))
    };
    thinking.into_iter().chain(text).chain(answer.calls.iter().map(call)).collect()
}
