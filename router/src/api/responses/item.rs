//! The items of an answer to `/v1/responses`. An item gets its id when it begins.

use serde_json::{Value, json};

use crate::text::{Answer, ToolCall};

/// An item of an answer.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) content: ItemContent,
}

#[derive(Debug, Clone)]
pub(super) enum ItemContent {
    Reasoning(String),
    Message(String),
    Call(ToolCall),
}

/// The progress of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

impl Status {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }
}

impl Item {
    pub(super) fn new(content: ItemContent) -> Self {
        let prefix = match &content {
            ItemContent::Reasoning(_) => "rs",
            ItemContent::Message(_) => "msg",
            ItemContent::Call(_) => "fc",
        };
        Self { id: new_id(prefix), content }
    }

    /// Returns all items of an answer. An empty answer has an empty message.
    pub(super) fn all(answer: &Answer) -> Vec<Self> {
        let reasoning = (!answer.reasoning.is_empty()).then(|| ItemContent::Reasoning(answer.reasoning.clone()));
        let has_message = !answer.content.is_empty() || (answer.calls.is_empty() && reasoning.is_none());
        let message = has_message.then(|| ItemContent::Message(answer.content.clone()));
        let calls = answer.calls.iter().cloned().map(ItemContent::Call);
        reasoning.into_iter().chain(message).chain(calls).map(Self::new).collect()
    }

    /// Returns the item as JSON. An item in progress has no content yet.
    pub(super) fn value(&self, status: Status) -> Value {
        let (id, name) = (&self.id, status.name());
        let parts: Vec<Value> = self.part().filter(|_| status != Status::InProgress).into_iter().collect();
        match &self.content {
            ItemContent::Reasoning(_) => {
                json!({"type": "reasoning", "id": id, "summary": [], "content": parts, "status": name})
            }
            ItemContent::Message(_) => {
                json!({"type": "message", "id": id, "role": "assistant", "content": parts, "status": name})
            }
            ItemContent::Call(ToolCall { id: call_id, name: function, arguments }) => {
                json!({"type": "function_call", "id": id, "call_id": call_id, "name": function, "arguments": arguments, "status": name})
            }
        }
    }

    /// Returns the only part of the item's content; `None` for a call, which has no parts.
    pub(super) fn part(&self) -> Option<Value> {
        match &self.content {
            ItemContent::Reasoning(text) => Some(json!({"type": "reasoning_text", "text": text})),
            ItemContent::Message(text) => {
                Some(json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}))
            }
            ItemContent::Call(_) => None,
        }
    }
}

/// Returns a random id that begins with `prefix`.
pub(super) fn new_id(prefix: &str) -> String {
    format!("{prefix}_{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}
