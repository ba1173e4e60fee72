//! The APIs: which path, which body, and what an event of the stream says.
//!
//! | API | tokens | its last event has |
//! |---|---|---|
//! | `generate-stream` | an event is a token | `generated_text` |
//! | `completions` | `usage`, or else a chunk is a token | `finish_reason`; `[DONE]` follows |

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::workload::Turn;

/// Who speaks how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Api {
    GenerateStream,
    Completions,
}

/// An API with what stays the same in all requests.
#[derive(Debug)]
pub(crate) enum Dialect {
    GenerateStream { model: Option<String> },
    Completions { model: Option<String>, ignores_eos: bool },
}

/// What an event of a stream says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamEvent {
    /// Whether it brings a token, even one that makes no text yet.
    pub(crate) has_token: bool,
    pub(crate) text: String,
    /// Whether nothing that matters can be missing after it.
    pub(crate) is_last: bool,
    /// What the server counted.
    pub(crate) num_output_tokens: Option<u64>,
    pub(crate) num_prompt_tokens: Option<u64>,
}

/// Why an event says nothing useful.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EventError {
    /// The server's own words.
    #[error("{0}")]
    Server(String),
    #[error("{source}: {data}")]
    NotOfThisApi { data: String, source: serde_json::Error },
}

#[derive(Debug, Deserialize)]
struct GenerateEvent {
    token: GenerateToken,
    generated_text: Option<String>,
    details: Option<GenerateDetails>,
}

#[derive(Debug, Deserialize)]
struct GenerateToken {
    text: String,
    #[serde(default)]
    special: bool,
}

#[derive(Debug, Deserialize)]
struct GenerateDetails {
    input_length: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Chunk {
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
    finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

impl Api {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::GenerateStream => "generate-stream",
            Self::Completions => "completions",
        }
    }

    pub(crate) fn dialect(self, model: Option<&str>, ignores_eos: bool) -> Dialect {
        let model = model.map(str::to_owned);
        match self {
            Self::GenerateStream => Dialect::GenerateStream { model },
            Self::Completions => Dialect::Completions { model, ignores_eos },
        }
    }
}

impl Dialect {
    pub(crate) fn path(&self) -> &'static str {
        match self {
            Self::GenerateStream { .. } => "/generate_stream",
            Self::Completions { .. } => "/v1/completions",
        }
    }

    /// The body of a request, greedy.
    pub(crate) fn body(&self, turn: &Turn) -> String {
        let Turn { prompt, output_tokens } = turn;
        let (mut body, model) = match self {
            Self::GenerateStream { model } => {
                let parameters = json!({"max_new_tokens": output_tokens, "details": true});
                (json!({"inputs": prompt, "parameters": parameters}), model)
            }
            Self::Completions { model, ignores_eos } => {
                let mut body = json!({"prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "stream": true,
                    "stream_options": {"include_usage": true}});
                if *ignores_eos {
                    body["ignore_eos"] = Value::Bool(true);
                }
                (body, model)
            }
        };
        if let Some(model) = model {
            body["model"] = Value::from(model.as_str());
        }
        body.to_string()
    }

    /// Reads the data of an event.
    ///
    /// # Errors
    /// An error that the server sends, data that is not of this API.
    pub(crate) fn read(&self, data: &str) -> Result<StreamEvent, EventError> {
        match self {
            Self::GenerateStream { .. } => parse(data).map(generate_event),
            Self::Completions { .. } if data == "[DONE]" => Ok(StreamEvent { is_last: true, ..StreamEvent::default() }),
            Self::Completions { .. } => parse(data).map(completions_event),
        }
    }
}

fn parse<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, EventError> {
    serde_json::from_str(data).map_err(|source| match server_error(data) {
        Some(message) => EventError::Server(message),
        None => EventError::NotOfThisApi { data: data.to_owned(), source },
    })
}

/// The words of an error object: `{"error": "…"}`, `{"error": {"message": "…"}}` or `{"message": "…", "code": …}`.
fn server_error(data: &str) -> Option<String> {
    let value: Value = serde_json::from_str(data).ok()?;
    let error = value.get("error").unwrap_or(&value);
    let message = error.as_str().or_else(|| error.get("message")?.as_str());
    message.map(str::to_owned).or_else(|| value.get("error").map(Value::to_string))
}

fn generate_event(event: GenerateEvent) -> StreamEvent {
    let GenerateEvent { token, generated_text, details } = event;
    StreamEvent {
        has_token: true,
        text: if token.special { String::new() } else { token.text },
        is_last: generated_text.is_some(),
        num_output_tokens: None,
        num_prompt_tokens: details.and_then(|details| details.input_length),
    }
}

fn completions_event(chunk: Chunk) -> StreamEvent {
    let choice = chunk.choices.into_iter().next();
    let is_last = choice.as_ref().is_some_and(|choice| choice.finish_reason.is_some());
    let usage = chunk.usage.as_ref();
    StreamEvent {
        // A chunk without text is a token that is no whole character yet, unless it only says why the stream ends.
        has_token: choice.as_ref().is_some_and(|choice| !choice.text.is_empty() || choice.finish_reason.is_none()),
        text: choice.map(|choice| choice.text).unwrap_or_default(),
        is_last,
        num_output_tokens: usage.and_then(|usage| usage.completion_tokens),
        num_prompt_tokens: usage.and_then(|usage| usage.prompt_tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generate_stream() -> Dialect {
        Api::GenerateStream.dialect(None, false)
    }

    fn completions(ignores_eos: bool) -> Dialect {
        Api::Completions.dialect(Some("m"), ignores_eos)
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
        assert!(matches!(generate_stream().read("nonsense"), Err(EventError::NotOfThisApi { .. })));
        assert!(matches!(completions(false).read("{}"), Err(EventError::NotOfThisApi { .. })));
    }
}
