//! Tests of the differences between the APIs: prompts that are too long, unknown routes, numbers that mean the default.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::{Value, json};

use super::openai::{chat, saying};
use crate::testing::{FakeShard, TestServer, json as parse};

/// The number of digits in the prompt. The demo tokenizer turns each digit into one token, and adds a token at the
/// start.
const DIGITS: usize = 600;

fn chat_of(text: &str, changes: &Value) -> Value {
    let mut body = chat(changes);
    body["messages"] = json!([{"role": "user", "content": text}]);
    body
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_told_in_the_words_of_the_api() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let digits = "7".repeat(DIGITS);
    let context = "This model's maximum context length is 512 tokens";
    let prompt =
        format!("{context}, of which a prompt can have 511. However, your prompt resulted in 601 tokens. Please");
    let completion = |changes: Value| {
        let mut body = json!({"prompt": digits, "temperature": 0});
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        body
    };
    for (path, body, words) in [
        ("/v1/completions", completion(json!({})), vec![prompt.as_str()]),
        ("/v1/completions", completion(json!({"max_tokens": -1, "stream": true})), vec![prompt.as_str()]),
        (
            "/v1/completions",
            completion(json!({"max_tokens": 5})),
            vec![context, "606 tokens (601 in the prompt, 5 in the"],
        ),
        (
            "/v1/completions",
            json!({"prompt": [7], "max_tokens": 512}),
            vec![context, "513 tokens (1 in the prompt, 512 in"],
        ),
        ("/v1/chat/completions", chat_of(&digits, &json!({})), vec![context, "However, your prompt resulted in 6"]),
        (
            "/v1/chat/completions",
            chat(&json!({"max_tokens": 600, "stream": true})),
            vec![context, "600 in the completion"],
        ),
        ("/v1/responses", json!({"input": digits}), vec![context, "However, your prompt resulted in 6"]),
        ("/v1/responses", json!({"input": "x", "max_output_tokens": 600}), vec![context, "600 in the completion"]),
        ("/invocations", completion(json!({})), vec![context]),
    ] {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {}", answer.text);
        let error = &parse(&answer.text)["error"];
        let kinds = (&error["code"], &error["type"]);
        assert_eq!(kinds, (&json!("context_length_exceeded"), &json!("invalid_request_error")), "{path}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(words.iter().all(|words| message.contains(words)), "{path}: {message}");
    }
    // TGI's clients get TGI's message.
    let answer = server.post("/generate", &json!({"inputs": digits})).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    let sentence = "Input validation error: `inputs` must have less than 511 tokens. Given: 601";
    assert_eq!(parse(&answer.text), json!({"error": sentence, "error_type": "validation"}));
    let body = json!({"max_tokens": 50, "messages": [{"role": "user", "content": digits}]});
    let answer = server.post("/v1/messages", &body).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    let error = &parse(&answer.text)["error"];
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("prompt is too long: 6") && message.ends_with(" tokens > 511 maximum"), "{message}");
    assert_eq!(error["type"], "invalid_request_error");
}

#[tokio::test]
async fn anthropics_mandatory_limit_is_cut_to_what_is_left() {
    let server = TestServer::start(saying("Hi"), &[]).await;
    let body = |text: &str, max_tokens: u64| json!({"max_tokens": max_tokens, "temperature": 0, "messages": [{"role": "user", "content": text}]});
    let whole = server.post_ok("/v1/messages", &body("Hello", 32_000)).await;
    assert_eq!((&whole["content"][0]["text"], &whole["stop_reason"]), (&json!("Hi"), &json!("end_turn")));
    let endless =
        TestServer::start(FakeShard { next_token: std::sync::Arc::new(|_, _| 7), ..FakeShard::default() }, &[]).await;
    let cut = endless.post_ok("/v1/messages", &body(&"7".repeat(400), 32_000)).await;
    assert_eq!(cut["stop_reason"], "max_tokens");
    let usage = |name: &str| cut["usage"][name].as_u64().unwrap();
    assert_eq!(usage("input_tokens") + usage("output_tokens"), 512, "{cut}");
    for max_tokens in [0, 1 << 40] {
        let refused = server.post("/v1/messages", &body("Hello", max_tokens)).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", refused.text);
    }
}

#[tokio::test]
async fn minus_one_is_the_default() {
    let server = TestServer::start(saying("Hi"), &[]).await;
    let default = json!({"seed": -1, "max_tokens": -1});
    let mut responses = json!({"input": "Hello", "seed": -1, "max_output_tokens": -1});
    responses["temperature"] = json!(0);
    for (path, body) in [
        ("/v1/chat/completions", chat(&default)),
        ("/v1/chat/completions", chat(&json!({"max_completion_tokens": -1, "max_tokens": 40}))),
        ("/v1/completions", json!({"prompt": "a", "temperature": 0.5, "seed": -1, "max_tokens": -1})),
        ("/v1/responses", responses),
    ] {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
    }
    for changes in [json!({"seed": -2}), json!({"max_tokens": -2}), json!({"max_tokens": 1.5})] {
        let answer = server.post("/v1/chat/completions", &chat(&changes)).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{changes}");
        let field = changes.as_object().unwrap().keys().next().unwrap();
        assert!(answer.text.contains(field.as_str()), "{}", answer.text);
    }
}

#[tokio::test]
async fn an_unknown_route_is_an_error_in_the_shape_of_its_path() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let ask = async |method: Method, path: &str, headers: &[(&'static str, &str)]| {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = server.send(request.body(Body::empty()).unwrap()).await;
        (answer.status, parse(&answer.text))
    };
    let anthropic = [("anthropic-version", "2023-06-01")];
    for (path, headers) in [
        ("/v1/messages/batches", &[][..]),
        ("/v1/messages/", &[]),
        ("/v1/complete", &anthropic),
        ("/v1/models/other", &anthropic),
    ] {
        let (status, error) = ask(Method::GET, path, headers).await;
        assert_eq!(
            (status, &error["error"]["type"]),
            (StatusCode::NOT_FOUND, &json!("not_found_error")),
            "{path}: {error}"
        );
        assert_eq!(error["type"], "error");
    }
    let (status, error) = ask(Method::GET, "/v1/messages", &[]).await;
    assert_eq!((status, &error["type"]), (StatusCode::METHOD_NOT_ALLOWED, &json!("error")), "{error}");
    for (method, path, expected) in [
        (Method::GET, "/v1", StatusCode::NOT_FOUND),
        (Method::POST, "/v1/chat/complete", StatusCode::NOT_FOUND),
        (Method::GET, "/v1/models/other", StatusCode::NOT_FOUND),
        (Method::GET, "/v1/completions", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let (status, error) = ask(method, path, &[]).await;
        assert_eq!((status, &error["error"]["type"]), (expected, &json!("invalid_request_error")), "{path}: {error}");
        assert!(error["error"]["message"].is_string(), "{path}: {error}");
    }
    for path in ["/nowhere", "/v2/messages", "/v1messages"] {
        let (status, error) = ask(Method::GET, path, &anthropic).await;
        assert_eq!((status, &error["error_type"]), (StatusCode::NOT_FOUND, &json!("not_found")), "{path}");
        assert!(!error["error"].as_str().unwrap().contains("Ollama"), "{error}");
    }
}

#[tokio::test]
async fn clients_of_ollama_are_sent_elsewhere() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    for path in ["/api/tags", "/api/version", "/api"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
        let error = parse(&answer.text)["error"].as_str().unwrap().to_owned();
        assert!(error.starts_with(&format!("GET {path} is not a route")) && error.ends_with("below /v1"), "{error}");
    }
    assert_eq!(server.post("/api/chat", &json!({})).await.status, StatusCode::NOT_FOUND);
}
