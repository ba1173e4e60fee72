//! A body of OpenAI's routes. Fields that nobody knows are ignored, as clients send new ones all the time; what is known to
//! change the answer and is not done here is an error that names the field.

use axum::extract::{FromRequest, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::sampling::OpenAiSampling;
use crate::api::body::{parse, read};
use crate::error::{ApiError, OpenAiError};
use crate::state::AppState;

/// A parsed body: what is particular to the route, and what is not.
#[derive(Debug)]
pub(crate) struct OpenAiBody<T> {
    pub(crate) request: T,
    pub(crate) sampling: OpenAiSampling,
}

impl<T: DeserializeOwned> FromRequest<AppState> for OpenAiBody<T> {
    type Rejection = OpenAiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, OpenAiError> {
        Ok(Self::parse(&read(request, state).await?)?)
    }
}

impl<T: DeserializeOwned> OpenAiBody<T> {
    /// Reads the bytes of a body.
    ///
    /// # Errors
    /// When they are not JSON, of another shape, or ask for something that is not done here.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        parse::<NotDone>(bytes)?.check()?;
        Ok(Self { request: parse(bytes)?, sampling: parse(bytes)? })
    }
}

/// Fields of OpenAI's API, and of servers that extend it, which would change the answer.
#[derive(Debug, Deserialize)]
struct NotDone {
    audio: Option<Value>,
    best_of: Option<Value>,
    function_call: Option<Value>,
    functions: Option<Value>,
    grammar: Option<Value>,
    guided_choice: Option<Value>,
    guided_grammar: Option<Value>,
    guided_json: Option<Value>,
    guided_regex: Option<Value>,
    modalities: Option<Value>,
    prediction: Option<Value>,
    response_format: Option<Value>,
    skip_special_tokens: Option<Value>,
    stop_token_ids: Option<Value>,
    structured_outputs: Option<Value>,
    suffix: Option<Value>,
    tool_choice: Option<Value>,
    tools: Option<Value>,
    use_beam_search: Option<Value>,
    web_search_options: Option<Value>,
}

/// Whether a value is as good as none.
type AsksNothing<'a> = &'a dyn Fn(&Value) -> bool;

impl NotDone {
    /// # Errors
    /// Names the first field whose value asks for something.
    fn check(self) -> Result<(), ApiError> {
        let is_without_tools = self.tool_choice == Some(Value::from("none"));
        let is_empty = |value: &Value| match value {
            Value::Array(values) => values.is_empty(),
            Value::String(text) => text.is_empty(),
            Value::Null | Value::Bool(false) => true,
            Value::Bool(true) | Value::Number(_) | Value::Object(_) => false,
        };
        let is_text = |value: &Value| value.get("type").and_then(Value::as_str) == Some("text");
        let never = |_: &Value| false;
        let is_one = |value: &Value| value.as_u64() == Some(1);
        let fields: [(&str, Option<Value>, AsksNothing<'_>); 19] = [
            ("audio", self.audio, &never),
            ("best_of", self.best_of, &is_one),
            ("function_call", self.function_call, &|value| *value == "none"),
            ("functions", self.functions, &is_empty),
            ("grammar", self.grammar, &never),
            ("guided_choice", self.guided_choice, &never),
            ("guided_grammar", self.guided_grammar, &never),
            ("guided_json", self.guided_json, &never),
            ("guided_regex", self.guided_regex, &never),
            ("modalities", self.modalities, &|value| *value == Value::from(vec!["text"])),
            ("prediction", self.prediction, &never),
            ("response_format", self.response_format, &is_text),
            ("skip_special_tokens", self.skip_special_tokens, &|value| *value == true),
            ("stop_token_ids", self.stop_token_ids, &is_empty),
            ("structured_outputs", self.structured_outputs, &never),
            ("suffix", self.suffix, &is_empty),
            ("tools", self.tools, &|value| is_without_tools || is_empty(value)),
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
    fn what_asks_for_nothing_passes() {
        for body in [
            json!({"messages": [], "user": "x", "metadata": {"a": "b"}, "store": false, "something_new": [1]}),
            json!({"tools": [], "response_format": {"type": "text"}, "best_of": 1, "suffix": null, "modalities": ["text"]}),
            json!({"tools": [{"type": "function"}], "tool_choice": "none", "functions": [], "function_call": "none"}),
            json!({"stop_token_ids": [], "use_beam_search": false, "skip_special_tokens": true, "suffix": ""}),
        ] {
            check(&body, None);
        }
    }

    #[test]
    fn what_would_be_ignored_is_named() {
        for (body, field) in [
            (json!({"tools": [{"type": "function"}]}), "tools"),
            (json!({"tools": [{"type": "function"}], "tool_choice": "auto"}), "tools"),
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
            (json!({"guided_regex": "a"}), "guided_regex"),
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
