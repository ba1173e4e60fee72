//! Tests of texts that must follow a grammar, on several routes, alone and in a batch with other requests.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::testing::{FakeShard, TestServer, json as parse};

const SCHEMA: &str = r#"{"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":99},
    "ok":{"type":"boolean"}},"required":["n","ok"],"additionalProperties":false}"#;

fn check_json(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    let members = value.as_object().unwrap();
    assert!(members.len() == 2 && (0..100).contains(&value["n"].as_i64().unwrap()) && value["ok"].is_boolean());
}

#[tokio::test]
async fn every_route_keeps_to_a_grammar() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let schema: Value = parse(SCHEMA);
    let native = json!({"inputs": "a", "parameters": {"grammar": {"type": "json", "value": schema}, "details": true}});
    let answer = server.post_ok("/generate", &native).await;
    check_json(answer["generated_text"].as_str().unwrap());
    assert_eq!(answer["details"]["finish_reason"], "eos_token");

    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "response_format": format, "n": 3});
    let answer = server.post_ok("/v1/chat/completions", &chat).await;
    for choice in answer["choices"].as_array().unwrap() {
        check_json(choice["message"]["content"].as_str().unwrap());
        assert_eq!(choice["finish_reason"], "stop");
    }

    let completion = json!({"prompt": ["a", "b"], "guided_choice": ["left", "right"], "max_tokens": 20});
    let answer = server.post_ok("/v1/completions", &completion).await;
    for choice in answer["choices"].as_array().unwrap() {
        assert!(["left", "right"].contains(&choice["text"].as_str().unwrap()), "{choice}");
    }

    let stream = json!({"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "[0-9]{4}"}}});
    let events = server.post("/generate_stream", &stream).await;
    let last = parse(events.text.trim_end().rsplit("data: ").next().unwrap());
    let text = last["generated_text"].as_str().unwrap();
    assert!(text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit()), "{}", events.text);
}

#[tokio::test]
async fn those_without_a_grammar_do_not_notice() {
    for window in ["--step-window=1", "--step-window=2"] {
        let server = TestServer::start(FakeShard::default(), &[window]).await;
        let plain = |number: u32| json!({"inputs": format!("plain {number}"), "parameters": {"max_new_tokens": 30}});
        let with = |number: u32| json!({"inputs": format!("with {number}"), "parameters": {"grammar": {"type": "json", "value": parse(SCHEMA)}}});
        let mut alone = Vec::new();
        for number in 0..6 {
            alone.push((
                server.post_ok("/generate", &plain(number)).await,
                server.post_ok("/generate", &with(number)).await,
            ));
        }
        let (plains, withs): (Vec<Value>, Vec<Value>) = (0..6).map(|number| (plain(number), with(number))).unzip();
        let together = futures_util::future::join(
            futures_util::future::join_all(plains.iter().map(|body| server.post_ok("/generate", body))),
            futures_util::future::join_all(withs.iter().map(|body| server.post_ok("/generate", body))),
        );
        let (plains, withs) = together.await;
        assert_eq!(alone.into_iter().unzip::<_, _, Vec<_>, Vec<_>>(), (plains, withs), "{window}");
    }
}

#[tokio::test]
async fn a_wrong_grammar_is_the_clients_error_before_anything_is_sent() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let native = json!({"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "("}}});
    for path in ["/generate", "/generate_stream", "/"] {
        let answer = server.post(path, &native).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{path}");
        assert!(answer.text.contains("Input validation error: grammar is not valid: "), "{}", answer.text);
    }
    let format = json!({"type": "json_schema", "json_schema": {"schema": {"type": "strange"}}});
    let body = json!({"messages": [{"role": "user", "content": "a"}], "response_format": format, "stream": true});
    let answer = server.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let message = parse(&answer.text)["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with("Input validation error: response_format is not valid: Invalid type: strange"),
        "{message}"
    );
    let unknown = json!({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "yaml"}});
    let answer = server.post("/v1/chat/completions", &unknown).await;
    assert!(answer.text.contains("response_format: `type` \\\"yaml\\\" is not supported"), "{}", answer.text);
}

#[tokio::test]
async fn excessive_grammars_are_refused_before_a_prompt_is_read_and_others_are_served() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let properties = |count: usize| {
        let properties = (0..count).map(|n| (format!("p{n}"), json!({"type": "integer"})));
        json!({"properties": properties.collect::<serde_json::Map<_, _>>()})
    };
    let terminals = (0..800).map(|n| format!("\nA{n}: ((((A{}+)+)+)+)", n + 1)).collect::<String>();
    let schema = |schema: Value| json!({"type": "json", "value": schema});
    for (name, grammar, status) in [
        ("optional members", schema(properties(1000)), StatusCode::OK),
        ("too many at once", schema(json!({"anyOf": vec![properties(1000); 4]})), StatusCode::UNPROCESSABLE_ENTITY),
        (
            "terminals",
            json!({"type": "lark", "value": format!("start: A0{terminals}\nA800: \"x\"")}),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            "symbols",
            json!({"type": "lark", "value": format!("start: {}\nA: /a*/", "A ".repeat(40_000))}),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
    ] {
        let body = json!({"inputs": "a", "parameters": {"grammar": grammar, "max_new_tokens": 4}});
        let answer = server.post("/generate", &body).await;
        assert_eq!(answer.status, status, "{name}: {}", answer.text);
        assert!(!answer.text.contains("panic") && !answer.text.contains("assertion"), "{name}: {}", answer.text);
        let other = json!({"inputs": "a", "parameters": {"grammar": {"type": "choice", "value": [name]}}});
        assert_eq!(server.post_ok("/generate", &other).await["generated_text"], name);
    }
}

#[tokio::test]
async fn grammars_can_be_switched_off() {
    let server = TestServer::start(FakeShard::default(), &["--disable-grammar-support"]).await;
    let body = json!({"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "a"}}});
    let answer = server.post("/generate", &body).await;
    let expected = json!({"error": "Input validation error: grammar is not supported", "error_type": "validation"});
    assert_eq!((answer.status, parse(&answer.text)), (StatusCode::UNPROCESSABLE_ENTITY, expected));
}
