//! The supported APIs: their paths, their request bodies, and the meaning of their events.
//!
//! | API | number of tokens | content of the event that completes the answer |
//! |---|---|---|
//! | `generate-stream` | one per event | `generated_text` that is not null |
//! | `completions` | `usage`, or else one per chunk with a token | `finish_reason` with a word, or `[DONE]` |

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use crate::workload::Turn;

/// An API of text generation servers. `GenerateStream` is TGI's, `Completions` is OpenAI's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Api {
    GenerateStream,
    Completions,
}

/// An API, and the settings that are the same in all requests.
#[derive(Debug)]
pub(crate) struct Dialect {
    pub(crate) api: Api,
    pub(crate) model: Option<String>,
    pub(crate) ignores_eos: bool,
}

/// The content of an event of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamEvent {
    /// True if the event stands for a token, even for a token that adds no text yet.
    pub(crate) has_token: bool,
    pub(crate) text: String,
    /// True if the answer is complete with this event.
    pub(crate) is_last: bool,
    /// The number of generated tokens so far, if the server sends it in this event.
    pub(crate) num_output_tokens: Option<u64>,
    pub(crate) num_prompt_tokens: Option<u64>,
}

/// The error for an event without usable content.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EventError {
    /// The event is an error of the server with this message.
    #[error("{0}")]
    Server(String),
    /// The event, which has this data, does not belong to the API.
    #[error("not an event of this API: {0}")]
    Unknown(String),
}

impl Dialect {
    pub(crate) fn path(&self) -> &'static str {
        match self.api {
            Api::GenerateStream => "/generate_stream",
            Api::Completions => "/v1/completions",
        }
    }

    /// Returns the body of a request for a greedy stream.
    pub(crate) fn body(&self, turn: &Turn) -> String {
        let Turn { prompt, output_tokens } = turn;
        let mut body = match self.api {
            Api::GenerateStream => {
                json!({"inputs": prompt, "parameters": {"max_new_tokens": output_tokens, "details": true}})
            }
            Api::Completions => json!({"prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "stream": true,
                "stream_options": {"include_usage": true}}),
        };
        if let Some(model) = &self.model {
            body["model"] = Value::from(model.as_str());
        }
        if self.ignores_eos {
            body["ignore_eos"] = Value::Bool(true);
        }
        body.to_string()
    }

    /// Parses the data of an event.
    ///
    /// # Errors
    /// When the server sent an error, or when the data does not belong to this API.
    pub(crate) fn read(&self, data: &str) -> Result<StreamEvent, EventError> {
        if self.api == Api::Completions && data == "[DONE]" {
            return Ok(StreamEvent { is_last: true, ..StreamEvent::default() });
        }
        let value: Value = serde_json::from_str(data).unwrap_or_default();
        let event = match self.api {
            Api::GenerateStream => generate_event(&value),
            Api::Completions => completions_event(&value),
        };
        event.ok_or_else(|| match server_error(&value) {
            Some(message) => EventError::Server(message),
            None => EventError::Unknown(data.to_owned()),
        })
    }
}

/// Returns the message of an error object, which is usually `{"error": "…"}`, `{"error": {"message": "…"}}` or
/// `{"message": "…", "code": …}`.
fn server_error(value: &Value) -> Option<String> {
    let error = value.get("error").unwrap_or(value);
    let message = error.as_str().or_else(|| error["message"].as_str()).map(str::to_owned);
    message.or_else(|| value.get("error").map(Value::to_string))
}

fn generate_event(event: &Value) -> Option<StreamEvent> {
    let token = event.get("token")?;
    let text = token["text"].as_str()?;
    Some(StreamEvent {
        has_token: true,
        text: if token["special"] == true { String::new() } else { text.to_owned() },
        is_last: !event["generated_text"].is_null(),
        num_output_tokens: None,
        num_prompt_tokens: event["details"]["input_length"].as_u64(),
    })
}

fn completions_event(chunk: &Value) -> Option<StreamEvent> {
    let choice = chunk["choices"].as_array()?.first();
    let text = choice.and_then(|choice| choice["text"].as_str()).unwrap_or_default();
    // In all chunks but the last, TGI sends an empty reason, where other servers send null.
    let is_last = choice.and_then(|choice| choice["finish_reason"].as_str()).is_some_and(|reason| !reason.is_empty());
    Some(StreamEvent {
        // A chunk without text stands for a token that does not yet complete a character, unless the chunk only has the
        // reason for the end.
        has_token: !text.is_empty() || choice.is_some() && !is_last,
        text: text.to_owned(),
        is_last,
        num_output_tokens: chunk["usage"]["completion_tokens"].as_u64(),
        num_prompt_tokens: chunk["usage"]["prompt_tokens"].as_u64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generate_stream() -> Dialect {
        Dialect { api: Api::GenerateStream, model: None, ignores_eos: false }
    }

    fn completions(ignores_eos: bool) -> Dialect {
        Dialect { api: Api::Completions, model: Some("m".to_owned()), ignores_eos }
    }

    fn event(has_token: bool, text: &str, is_last: bool) -> StreamEvent {
        StreamEvent { has_token, text: text.to_owned(), is_last, ..StreamEvent::default() }
    }

    #[test]
    fn bodies_ask_for_a_greedy_stream() {
        let turn = Turn { prompt: "Hi".to_owned(), output_tokens: 3 };
        let parse = |dialect: &Dialect| serde_json::from_str::<Value>(&dialect.body(&turn)).unwrap();
        let expected = json!({"inputs": "Hi", "parameters": {"max_new_tokens": 3, "details": true}});
        assert_eq!(parse(&generate_stream()), expected);
        let mut expected = json!({"model": "m", "prompt": "Hi", "max_tokens": 3, "temperature": 0, "stream": true,
            "stream_options": {"include_usage": true}});
        assert_eq!(parse(&completions(false)), expected);
        expected["ignore_eos"] = true.into();
        assert_eq!(parse(&completions(true)), expected);
    }

    #[test]
    fn events_of_tgi() {
        let read = |data: &str| generate_stream().read(data).unwrap();
        let token = r#"{"index":1,"token":{"id":5,"text":" a","logprob":-1.0,"special":false},"top_tokens":[],
            "generated_text":null,"details":null}"#;
        assert_eq!(read(token), event(true, " a", false));
        let last = r#"{"token":{"text":"</s>","special":true},"generated_text":" a",
            "details":{"finish_reason":"eos_token","generated_tokens":2,"seed":null,"input_length":9}}"#;
        assert_eq!(read(last), StreamEvent { num_prompt_tokens: Some(9), ..event(true, "", true) });
    }

    #[test]
    fn chunks_of_completions() {
        let read = |data: &str| completions(false).read(data).unwrap();
        assert_eq!(read(r#"{"choices":[{"text":" a","finish_reason":null}]}"#), event(true, " a", false));
        assert_eq!(read(r#"{"choices":[{"text":""}],"usage":null}"#), event(true, "", false));
        assert_eq!(read(r#"{"choices":[{"text":"","finish_reason":""}]}"#), event(true, "", false));
        assert_eq!(read(r#"{"choices":[{"text":" b","finish_reason":"length"}]}"#), event(true, " b", true));
        assert_eq!(read(r#"{"choices":[{"text":"","finish_reason":"stop"}]}"#), event(false, "", true));
        let usage = StreamEvent { num_output_tokens: Some(4), num_prompt_tokens: Some(2), ..event(false, "", false) };
        assert_eq!(read(r#"{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":4}}"#), usage);
        assert_eq!(read("[DONE]"), event(false, "", true));
    }

    #[test]
    fn errors_in_streams_are_the_words_of_the_server() {
        for data in [r#"{"error":"full","error_type":"x"}"#, r#"{"error":{"message":"full"}}"#, r#"{"message":"full"}"#]
        {
            assert_eq!(generate_stream().read(data).unwrap_err().to_string(), "full");
            assert_eq!(completions(false).read(data).unwrap_err().to_string(), "full");
        }
        assert!(matches!(generate_stream().read("nonsense"), Err(EventError::Unknown(_))));
        assert!(matches!(completions(false).read("{}"), Err(EventError::Unknown(_))));
    }
}
