//! The response of `/v1/messages` as named events: blocks that begin, grow and end one after the other.

use serde_json::{Value, json};

use super::reply::{Message, stop_reason, text_block, thinking_block, tool_use_block, usage};
use crate::api::answer_events::AnswerDialect;
use crate::api::sse::write_named_event as write;
use crate::error::{AnthropicError, ApiError};
use crate::generation::Finish;
use crate::text::AnswerEvent;

/// The state of the stream of `/v1/messages`: the open block, and what the events need from the request.
#[derive(Debug)]
pub(crate) struct MessageEvents {
    model: String,
    stop_sequences: Vec<String>,
    /// The kind of the open block.
    open: Option<Block>,
    num_blocks: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

impl MessageEvents {
    pub(crate) fn new(model: &str, stop_sequences: Vec<String>) -> Self {
        Self { model: model.to_owned(), stop_sequences, open: None, num_blocks: 0 }
    }

    /// Ends the open block and begins one of kind `block`, unless a block of that kind is already open.
    fn begin_block(&mut self, chunk: &mut Vec<u8>, block: Block, content: impl FnOnce() -> Value) {
        if self.open == Some(block) {
            return;
        }
        self.end_block(chunk);
        self.open = Some(block);
        self.num_blocks += 1;
        write(chunk, &json!({"type": "content_block_start", "index": self.index(), "content_block": content()}));
    }

    fn delta(&self, chunk: &mut Vec<u8>, delta: &Value) {
        write(chunk, &json!({"type": "content_block_delta", "index": self.index(), "delta": delta}));
    }

    fn end_block(&mut self, chunk: &mut Vec<u8>) {
        if self.open.take().is_some() {
            write(chunk, &json!({"type": "content_block_stop", "index": self.index()}));
        }
    }

    /// Returns the index of the block that began last.
    fn index(&self) -> usize {
        self.num_blocks.saturating_sub(1)
    }
}

impl AnswerDialect for MessageEvents {
    fn begin(&mut self, chunk: &mut Vec<u8>) {
        write(chunk, &json!({"type": "message_start", "message": Message::empty(&self.model)}));
    }

    fn event(&mut self, chunk: &mut Vec<u8>, event: AnswerEvent) {
        match event {
            AnswerEvent::Reasoning(text) => {
                self.begin_block(chunk, Block::Thinking, || thinking_block(""));
                self.delta(chunk, &json!({"type": "thinking_delta", "thinking": text}));
            }
            AnswerEvent::Content(text) => {
                self.begin_block(chunk, Block::Text, || text_block(""));
                self.delta(chunk, &json!({"type": "text_delta", "text": text}));
            }
            AnswerEvent::CallStarted { id, name } => {
                self.begin_block(chunk, Block::ToolUse, || tool_use_block(&id, &name, &json!({})));
            }
            AnswerEvent::Arguments(piece) => {
                self.delta(chunk, &json!({"type": "input_json_delta", "partial_json": piece}));
            }
            AnswerEvent::CallEnded => self.end_block(chunk),
        }
    }

    fn finish(&mut self, chunk: &mut Vec<u8>, finish: &Finish) {
        if self.num_blocks == 0 {
            self.begin_block(chunk, Block::Text, || text_block(""));
        }
        self.end_block(chunk);
        let stop_sequence = finish.stop_index.and_then(|index| self.stop_sequences.get(index));
        let delta = json!({"stop_reason": stop_reason(finish), "stop_sequence": stop_sequence});
        write(chunk, &json!({"type": "message_delta", "delta": delta, "usage": usage(finish)}));
        write(chunk, &json!({"type": "message_stop"}));
    }

    fn fail(&mut self, chunk: &mut Vec<u8>, error: ApiError) {
        write(chunk, &AnthropicError::from(error).body());
    }
}
