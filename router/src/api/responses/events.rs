//! The response of `/v1/responses` as named, numbered events: items that begin, grow and end one after the other.

use serde_json::{Value, json};

use super::item::{Item, ItemContent, Status};
use super::reply::{ResponseHead, status};
use crate::api::answer_events::AnswerDialect;
use crate::api::sse::write_named_event;
use crate::error::ApiError;
use crate::generation::Finish;
use crate::text::{AnswerEvent, ToolCall};

/// The state of the stream of `/v1/responses`: the items so far, and the number of events.
#[derive(Debug)]
pub(crate) struct ResponseEvents {
    head: ResponseHead,
    /// The items that have ended.
    output: Vec<Value>,
    /// The open item.
    open: Option<Item>,
    num_events: u64,
}

impl ResponseEvents {
    pub(crate) fn new(head: ResponseHead) -> Self {
        Self { head, output: Vec::new(), open: None, num_events: 0 }
    }

    fn begin_item(&mut self, chunk: &mut Vec<u8>, content: ItemContent) {
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

    /// Adds the index of the item that begins, grows or ends to an event, and returns the event.
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

impl AnswerDialect for ResponseEvents {
    fn begin(&mut self, chunk: &mut Vec<u8>) {
        for name in ["response.created", "response.in_progress"] {
            self.write(chunk, name, json!({"response": self.head.begun()}));
        }
    }

    fn event(&mut self, chunk: &mut Vec<u8>, event: AnswerEvent) {
        match event {
            AnswerEvent::Reasoning(text) => {
                if !matches!(self.open, Some(Item { content: ItemContent::Reasoning(_), .. })) {
                    self.begin_item(chunk, ItemContent::Reasoning(String::new()));
                }
                self.grow(chunk, "response.reasoning_text.delta", &text);
            }
            AnswerEvent::Content(text) => {
                if !matches!(self.open, Some(Item { content: ItemContent::Message(_), .. })) {
                    self.begin_item(chunk, ItemContent::Message(String::new()));
                }
                self.grow(chunk, "response.output_text.delta", &text);
            }
            AnswerEvent::CallStarted { id, name } => {
                self.begin_item(chunk, ItemContent::Call(ToolCall { id, name, arguments: String::new() }));
            }
            AnswerEvent::Arguments(piece) => self.grow(chunk, "response.function_call_arguments.delta", &piece),
            // The call's item ends when the next item begins or the answer ends. Only then is the item's status known:
            // the last item of an answer that was cut off is incomplete.
            AnswerEvent::CallEnded => {}
        }
    }

    fn finish(&mut self, chunk: &mut Vec<u8>, finish: &Finish) {
        if self.open.is_none() && self.output.is_empty() {
            self.begin_item(chunk, ItemContent::Message(String::new()));
        }
        self.end_item(chunk, status(finish));
        let name = match status(finish) {
            Status::Incomplete => "response.incomplete",
            Status::Completed | Status::InProgress => "response.completed",
        };
        let response = self.head.finished(finish, std::mem::take(&mut self.output));
        self.write(chunk, name, json!({"response": response}));
    }

    fn fail(&mut self, chunk: &mut Vec<u8>, error: ApiError) {
        self.end_item(chunk, Status::Incomplete);
        let response = self.head.failed(&error.to_string(), std::mem::take(&mut self.output));
        self.write(chunk, "response.failed", json!({"response": response}));
    }
}
