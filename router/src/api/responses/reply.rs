//! The response of `/v1/responses`: the fields that are known before the answer, and the whole response.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use utoipa::openapi::schema::{ArrayBuilder, SchemaType};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::item::{Item, Status, new_id};
use crate::generation::{Finish, FinishReason};

/// The fields of a response that are known before the answer, as a JSON object.
#[derive(Debug, Clone)]
pub(crate) struct ResponseHead(Value);

/// The schema of the whole response in the OpenAPI document.
impl ToSchema for ResponseHead {
    fn name() -> std::borrow::Cow<'static, str> {
        "Response".into()
    }
}

impl PartialSchema for ResponseHead {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let object_or_null = || ObjectBuilder::new().schema_type(SchemaType::from_iter([Type::Object, Type::Null]));
        let output = ArrayBuilder::new().items(ObjectBuilder::new().property("type", text()).required("type"));
        let fields = [("id", text()), ("object", text()), ("model", text()), ("status", text())];
        let fields = fields.into_iter().chain([("usage", object_or_null()), ("incomplete_details", object_or_null())]);
        let response = fields
            .fold(ObjectBuilder::new(), |response, (name, schema)| response.property(name, schema).required(name));
        response.property("output", output).required("output").into()
    }
}

impl ResponseHead {
    /// Creates the head of a response from the model `model`. `echo` is an object with the request's fields that the
    /// response repeats.
    pub(super) fn new(model: &str, echo: Value) -> Self {
        let created_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut head = json!({"id": new_id("resp"), "object": "response", "created_at": created_at, "model": model,
            "error": null, "incomplete_details": null, "usage": null, "output": []});
        if let (Value::Object(head), Value::Object(echo)) = (&mut head, echo) {
            head.extend(echo);
        }
        Self(head)
    }

    /// Returns the whole response, with the answer of `finish`.
    pub(crate) fn whole(&self, finish: &Finish) -> Value {
        let items = Item::all(&finish.answer);
        let num_others = items.len().saturating_sub(1);
        let last_status = status(finish);
        let value = |(index, item): (usize, &Item)| {
            item.value(if index < num_others { Status::Completed } else { last_status })
        };
        self.finished(finish, items.iter().enumerate().map(value).collect())
    }

    /// Returns the response before its first item.
    pub(super) fn begun(&self) -> Value {
        self.with_status(Status::InProgress.name())
    }

    /// Returns the finished response with its items.
    pub(super) fn finished(&self, finish: &Finish, output: Vec<Value>) -> Value {
        let status = status(finish);
        let mut response = self.with_status(status.name());
        if status == Status::Incomplete {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["output"] = Value::Array(output);
        response["usage"] = json!({
            "input_tokens": finish.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": finish.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": finish.num_generated_tokens,
            "output_tokens_details": {"reasoning_tokens": finish.answer.num_reasoning_tokens},
            "total_tokens": finish.num_prompt_tokens + finish.num_generated_tokens,
        });
        response
    }

    /// Returns the response after a failure.
    pub(super) fn failed(&self, message: &str, output: Vec<Value>) -> Value {
        let mut response = self.with_status("failed");
        response["error"] = json!({"code": "server_error", "message": message});
        response["output"] = Value::Array(output);
        response
    }

    fn with_status(&self, status: &str) -> Value {
        let mut response = self.0.clone();
        response["status"] = Value::from(status);
        response
    }
}

/// Returns the status of a finished response and of its last item.
pub(super) fn status(finish: &Finish) -> Status {
    match finish.reason {
        FinishReason::Length => Status::Incomplete,
        FinishReason::EosToken | FinishReason::StopSequence => Status::Completed,
    }
}
