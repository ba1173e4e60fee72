//! A body of OpenAI's routes. Unknown fields are ignored, because clients send new ones all the time. A known field
//! that would change the answer but is not supported is an error that names it.

use std::borrow::Cow;

use axum::extract::{FromRequest, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa::openapi::schema::{AllOfBuilder, Schema};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::sampling::OpenAiSampling;
use super::structured_output::StructuredOutput;
use crate::api::body::{parse, read_as};
use crate::error::{ApiError, OpenAiError};
use crate::state::AppState;

/// A parsed body: the fields of the route, and the fields that all generating routes share.
#[derive(Debug)]
pub(crate) struct OpenAiBody<T> {
    pub(crate) request: T,
    pub(crate) sampling: OpenAiSampling,
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for OpenAiBody<T> {
    type Rejection = OpenAiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, OpenAiError> {
        Ok(read_as(request, state, Self::parse).await?)
    }
}

impl<T: DeserializeOwned> OpenAiBody<T> {
    /// Parses the bytes of a body.
    ///
    /// # Errors
    /// When the bytes are not JSON, do not have the expected shape, or ask for something that is not supported.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        parse::<NotDone>(bytes)?.check()?;
        let grammar = parse::<StructuredOutput>(bytes)?.into_grammar()?;
        let sampling = OpenAiSampling { grammar, ..parse(bytes)? };
        Ok(Self { request: parse(bytes)?, sampling })
    }
}

/// The OpenAPI document describes all fields of a body by one schema.
impl<T: ToSchema> ToSchema for OpenAiBody<T> {
    fn name() -> Cow<'static, str> {
        T::name()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        T::schemas(schemas);
        OpenAiSampling::schemas(schemas);
        StructuredOutput::schemas(schemas);
        schemas.push((OpenAiSampling::name().into_owned(), OpenAiSampling::schema()));
        schemas.push((StructuredOutput::name().into_owned(), StructuredOutput::schema()));
    }
}

impl<T: ToSchema> PartialSchema for OpenAiBody<T> {
    fn schema() -> RefOr<Schema> {
        let parts = [OpenAiSampling::name(), StructuredOutput::name()].map(Ref::from_schema_name);
        let whole = AllOfBuilder::new().item(T::schema());
        parts.into_iter().fold(whole, AllOfBuilder::item).into()
    }
}

/// The unsupported fields that would change the answer: fields of OpenAI's API, and of servers that extend it.
#[derive(Debug, Deserialize)]
struct NotDone {
    audio: Option<Value>,
    best_of: Option<Value>,
    function_call: Option<Value>,
    functions: Option<Value>,
    modalities: Option<Value>,
    prediction: Option<Value>,
    skip_special_tokens: Option<Value>,
    stop_token_ids: Option<Value>,
    suffix: Option<Value>,
    tool_prompt: Option<Value>,
    use_beam_search: Option<Value>,
    web_search_options: Option<Value>,
}

/// A function that returns true if the value of a field asks for nothing, because it means the default.
type AsksNothing<'a> = &'a dyn Fn(&Value) -> bool;

impl NotDone {
    /// Refuses the request if one of these fields asks for something.
    ///
    /// # Errors
    /// When a field asks for something. The message names the first such field.
    fn check(self) -> Result<(), ApiError> {
        let is_empty = |value: &Value| match value {
            Value::Array(values) => values.is_empty(),
            Value::String(text) => text.is_empty(),
            Value::Null | Value::Bool(false) => true,
            Value::Bool(true) | Value::Number(_) | Value::Object(_) => false,
        };
        let never = |_: &Value| false;
        let is_one = |value: &Value| value.as_u64() == Some(1);
        let fields: [(&str, Option<Value>, AsksNothing<'_>); 12] = [
            ("audio", self.audio, &never),
            ("best_of", self.best_of, &is_one),
            ("function_call", self.function_call, &|value| *value == "none"),
            ("functions", self.functions, &is_empty),
            ("modalities", self.modalities, &|value| *value == Value::from(vec!["text"])),
            ("prediction", self.prediction, &never),
            ("skip_special_tokens", self.skip_special_tokens, &|value| *value == true),
            ("stop_token_ids", self.stop_token_ids, &is_empty),
            ("suffix", self.suffix, &is_empty),
            ("tool_prompt", self.tool_prompt, &is_empty),
            ("use_beam_search", self.use_beam_search, &is_empty),
            ("web_search_options", self.web_search_options, &never),
        ];
        let asked = fields
            .into_iter()
            .find_map(|(field, value, asks_nothing)| value.filter(|value| !asks_nothing(value)).map(|_| field));
        asked.map_or(Ok(()), |field| Err(ApiError::NotSupported { what: format!("`{field}`") }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(body: &Value, expected: Option<&str>) {
        let refused = serde_json::from_value::<NotDone>(body.clone()).unwrap().check();
        let expected = expected.map(|field| format!("`{field}` is not supported by this server"));
        assert_eq!(refused.err().map(|error| error.to_string()), expected, "{body}");
    }

    #[test]
    fn unsupported_fields_without_effect_pass() {
        for body in [
            json!({"messages": [], "user": "x", "metadata": {"a": "b"}, "store": false, "something_new": [1]}),
            json!({"tool_prompt": "", "best_of": 1, "suffix": null, "modalities": ["text"]}),
            json!({"functions": [], "function_call": "none"}),
            json!({"stop_token_ids": [], "use_beam_search": false, "skip_special_tokens": true, "suffix": ""}),
        ] {
            check(&body, None);
        }
    }

    #[test]
    fn fields_that_would_be_ignored_are_named() {
        for (body, field) in [
            (json!({"tool_prompt": "Call it."}), "tool_prompt"),
            (json!({"best_of": 2}), "best_of"),
            (json!({"suffix": "x"}), "suffix"),
            (json!({"modalities": ["audio"]}), "modalities"),
            (json!({"stop_token_ids": [1]}), "stop_token_ids"),
            (json!({"skip_special_tokens": false}), "skip_special_tokens"),
        ] {
            check(&body, Some(field));
        }
    }
}
