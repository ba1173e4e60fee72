//! Anthropic's routes: shapes, events, stop sequences, errors.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::openai::saying;
use crate::testing::{FakeShard, TestServer, json as parse};

fn body(changes: &Value) -> Value {
    let mut body =
        json!({"model": "x", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0});
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    body
}

/// Names and contents of the events.
fn events(text: &str) -> Vec<(String, Value)> {
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data = parse(data.strip_prefix("data: ").unwrap());
        (name.strip_prefix("event: ").unwrap().to_owned(), data)
    };
    text.split_terminator("\n\n").map(event).collect()
}

#[tokio::test]
async fn a_message_is_answered() {
    let server = TestServer::start(saying("Hi there"), &[]).await;
    let system = json!([{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]);
    let answer = server.post_ok("/v1/messages", &body(&json!({"system": system}))).await;
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"), "{answer}");
    for (key, value) in [
        ("type", json!("message")),
        ("role", json!("assistant")),
        ("model", json!("demo")),
        ("content", json!([{"type": "text", "text": "Hi there"}])),
        ("stop_reason", json!("end_turn")),
        ("stop_sequence", Value::Null),
    ] {
        assert_eq!(answer[key], value, "{key}");
    }
    assert_eq!(answer["usage"]["output_tokens"], 9);
    let count = server.post_ok("/v1/messages/count_tokens", &body(&json!({"system": system}))).await;
    assert_eq!(count, json!({"input_tokens": answer["usage"]["input_tokens"]}));
}

#[tokio::test]
async fn events_have_names_and_an_order() {
    let server = TestServer::start(saying("Hi, you"), &[]).await;
    let answer = server.post("/v1/messages", &body(&json!({"stream": true, "stop_sequences": ["zzz", ", y"]}))).await;
    assert_eq!(answer.status, StatusCode::OK);
    let events = events(&answer.text);
    assert!(events.iter().all(|(name, data)| data["type"] == *name), "{events:?}");
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let text = events.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect::<String>();
    assert_eq!(text, "Hi");
    let (_, last) = &events[events.len() - 2];
    assert_eq!(last["delta"], json!({"stop_reason": "stop_sequence", "stop_sequence": ", y"}));
    let whole = server.post_ok("/v1/messages", &body(&json!({"stop_sequences": ["zzz", ", y"]}))).await;
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("stop_sequence"), &json!(", y")));
}

#[tokio::test]
async fn errors_are_as_anthropics_clients_read_them() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {}}]}]);
    for (body, message) in [
        (json!({"messages": []}), "messages: there must be at least one"),
        (json!({"messages": [{"role": "user", "content": "x"}]}), "missing field `max_tokens`"),
        (body(&json!({"tools": [{"name": "f"}]})), "`tools` is not supported by this server"),
        (
            body(&json!({"thinking": {"type": "enabled", "budget_tokens": 9}})),
            "`thinking` is not supported by this server",
        ),
        (body(&json!({"messages": image})), "\"image\" is not supported"),
        (body(&json!({"max_tokens": 100_000})), "must be <= 512"),
    ] {
        let answer = server.post("/v1/messages", &body).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{body}: {}", answer.text);
        let error = parse(&answer.text);
        assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
        assert!(error["error"]["message"].as_str().unwrap().contains(message), "{body}: {error}");
    }
    let failing = TestServer::start(FakeShard { dies_at_step: Some(3), ..FakeShard::default() }, &[]).await;
    let answer = failing.post("/v1/messages", &body(&json!({"stream": true}))).await;
    let events = events(&answer.text);
    let (name, last) = events.last().unwrap();
    assert_eq!((name.as_str(), &last["error"]["type"]), ("error", &json!("api_error")));
}
