//! The answer as events, each with its name and a number: items that begin, grow and end one after the other.

use std::task::{Context, Poll, ready};

use serde_json::{Value, json};

use super::item::{Item, ItemContent, Status};
use super::reply::{ResponseHead, status};
use crate::api::sse::{Events, write_named_event};
use crate::error::ApiError;
use crate::generation::{Finish, Generation, Piece};
use crate::text::{AnswerEvent, ToolCall};

/// The stream.
#[derive(Debug)]
pub(crate) struct ResponseEvents {
    generation: Generation,
    head: ResponseHead,
    /// Items that have ended.
    output: Vec<Value>,
    /// The item that grows.
    open: Option<Item>,
    num_events: u64,
    has_ended: bool,
}

impl ResponseEvents {
    pub(crate) fn new(generation: Generation, head: ResponseHead) -> Self {
        Self { generation, head, output: Vec::new(), open: None, num_events: 0, has_ended: false }
    }

    fn event(&mut self, chunk: &mut Vec<u8>, event: AnswerEvent) {
        match event {
            AnswerEvent::Reasoning(text) => {
                if !matches!(self.open, Some(Item { content: ItemContent::Reasoning(_), .. })) {
                    self.begin(chunk, ItemContent::Reasoning(String::new()));
                }
                self.grow(chunk, "response.reasoning_text.delta", &text);
            }
            AnswerEvent::Content(text) => {
                if !matches!(self.open, Some(Item { content: ItemContent::Message(_), .. })) {
                    self.begin(chunk, ItemContent::Message(String::new()));
                }
                self.grow(chunk, "response.output_text.delta", &text);
            }
            AnswerEvent::CallStarted { id, name } => {
                self.begin(chunk, ItemContent::Call(ToolCall { id, name, arguments: String::new() }));
            }
            AnswerEvent::Arguments(piece) => self.grow(chunk, "response.function_call_arguments.delta", &piece),
            // It is over when something else comes: until then it may be cut off.
            AnswerEvent::CallEnded => {}
        }
    }

    fn begin(&mut self, chunk: &mut Vec<u8>, content: ItemContent) {
        self.end_item(chunk, Status::Completed);
        let item = Item::new(content);
        self.write(chunk, "response.output_item.added", self.at_item(&json!({"item": item.value(Status::InProgress)})));
        if let Some(part) = item.part() {
            let part = json!({"item_id": item.id, "content_index": 0, "part": part});
            self.write(chunk, "response.content_part.added", self.at_item(&part));
        }
        self.open = Some(item);
    }

    fn grow(&mut self, chunk: &mut Vec<u8>, name: &str, delta: &str) {
        let Some(item) = &mut self.open else { return };
        let mut event = json!({"item_id": item.id, "delta": delta});
        match &mut item.content {
            ItemContent::Reasoning(text) => {
                text.push_str(delta);
                event["content_index"] = json!(0);
            }
            ItemContent::Message(text) => {
                text.push_str(delta);
                event["content_index"] = json!(0);
                event["logprobs"] = json!([]);
            }
            ItemContent::Call(call) => call.arguments.push_str(delta),
        }
        self.write(chunk, name, self.at_item(&event));
    }

    fn end_item(&mut self, chunk: &mut Vec<u8>, status: Status) {
        let Some(item) = self.open.take() else { return };
        let id = &item.id;
        let (name, done) = match &item.content {
            ItemContent::Reasoning(text) => {
                ("response.reasoning_text.done", json!({"item_id": id, "content_index": 0, "text": text}))
            }
            ItemContent::Message(text) => {
                ("response.output_text.done", json!({"item_id": id, "content_index": 0, "text": text, "logprobs": []}))
            }
            ItemContent::Call(ToolCall { name, arguments, .. }) => {
                ("response.function_call_arguments.done", json!({"item_id": id, "name": name, "arguments": arguments}))
            }
        };
        self.write(chunk, name, self.at_item(&done));
        if let Some(part) = item.part() {
            let part = json!({"item_id": id, "content_index": 0, "part": part});
            self.write(chunk, "response.content_part.done", self.at_item(&part));
        }
        let value = item.value(status);
        self.write(chunk, "response.output_item.done", self.at_item(&json!({"item": value})));
        self.output.push(value);
    }

    fn finish(&mut self, chunk: &mut Vec<u8>, finish: &Finish) {
        if self.open.is_none() && self.output.is_empty() {
            self.begin(chunk, ItemContent::Message(String::new()));
        }
        self.end_item(chunk, status(finish));
        let name = match status(finish) {
            Status::Incomplete => "response.incomplete",
            Status::Completed | Status::InProgress => "response.completed",
        };
        let response = self.head.finished(finish, std::mem::take(&mut self.output));
        self.write(chunk, name, json!({"response": response}));
        self.has_ended = true;
    }

    fn fail(&mut self, chunk: &mut Vec<u8>, message: &str) {
        self.end_item(chunk, Status::Incomplete);
        let response = self.head.failed(message, std::mem::take(&mut self.output));
        self.write(chunk, "response.failed", json!({"response": response}));
        self.has_ended = true;
    }

    /// An event of the item that grows, or begins.
    fn at_item(&self, event: &Value) -> Value {
        let mut event = event.clone();
        event["output_index"] = Value::from(self.output.len());
        event
    }

    fn write(&mut self, chunk: &mut Vec<u8>, name: &str, mut event: Value) {
        event["type"] = Value::from(name);
        event["sequence_number"] = Value::from(self.num_events);
        self.num_events += 1;
        write_named_event(chunk, &event);
    }
}

impl Events for ResponseEvents {
    fn poll_events(&mut self, cx: &mut Context<'_>, chunk: &mut Vec<u8>) -> Poll<Option<()>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if self.num_events == 0 {
            for name in ["response.created", "response.in_progress"] {
                self.write(chunk, name, json!({"response": self.head.begun()}));
            }
        }
        match ready!(self.generation.poll_next(cx)) {
            None => return Poll::Ready(None),
            Some(Ok(Piece { events, finish, .. })) => {
                events.into_iter().for_each(|event| self.event(chunk, event));
                if let Some(finish) = finish {
                    self.finish(chunk, &finish);
                }
            }
            Some(Err(failure)) => self.fail(chunk, &ApiError::of_stream(failure).to_string()),
        }
        Poll::Ready(Some(()))
    }
}
