//! Tests of the routes, with a fake shard to which the server connects by a real socket.
//!
//! Most failures concern several routes, so the tests are grouped by topic, not by route.

mod answers;
mod anthropic;
mod bodies;
mod chat;
mod dialects;
mod echo;
mod failures;
mod openai;
mod responses;
mod sharing;
mod structured_output;
mod tools;
mod wire;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use serde_json::{Value, json};

use crate::testing::{FakeShard, TestServer};

#[tokio::test]
async fn the_rest_answers() {
    let server = TestServer::start(FakeShard::default(), &["--max-total-tokens=64", "--max-batch-size=3"]).await;
    for path in ["/health", "/", "/ping"] {
        let answer = server.get(path).await;
        assert_eq!((answer.status, answer.text.as_str()), (StatusCode::OK, ""));
    }
    let info = crate::testing::json(&server.get("/info").await.text);
    for (field, value) in [
        ("model_id", json!("demo")),
        ("model_dtype", json!("float32")),
        ("model_device_type", json!("cpu")),
        ("max_input_tokens", json!(63)),
        ("max_total_tokens", json!(64)),
        ("max_batch_size", json!(3)),
        ("max_concurrent_requests", json!(128)),
        ("router", json!("text-generation-router")),
        ("model_sha", Value::Null),
        ("sha", json!("c0ffee")),
        ("system_fingerprint", json!("0.1.0-b0b1b2b3b4b5-1-cpu-avx2")),
    ] {
        assert_eq!(info[field], value, "{field}");
    }
    let (id, target, features) = ("b0b1b2b3b4b5b6b7b8b9", "x86_64-unknown-linux-gnu", ["fxsr", "sse2"]);
    assert_eq!(info["build"], json!({"id": id, "target": target, "profile": "debug", "features": features}));
    let metrics = server.get("/metrics").await;
    assert!(metrics.headers[header::CONTENT_TYPE].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
    assert!(metrics.text.contains("tgi_batch_max_total_tokens 4096"), "{}", metrics.text);
}

#[tokio::test]
async fn requests_are_named_and_browsers_may_call() {
    let server = TestServer::start(FakeShard::default(), &["--cors-allow-origin=https://a.example"]).await;
    let named = Request::get("/info").header("x-request-id", "mine").body(Body::empty()).unwrap();
    assert_eq!(server.send(named).await.headers["x-request-id"], "mine");
    assert_eq!(server.get("/nowhere").await.headers["x-request-id"].len(), 16);
    let preflight = Request::options("/generate")
        .header("origin", "https://a.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type,anthropic-version,x-stainless-lang")
        .body(Body::empty())
        .unwrap();
    let answer = server.send(preflight).await;
    assert_eq!(answer.headers["access-control-allow-origin"], "https://a.example");
    let allowed = answer.headers["access-control-allow-headers"].to_str().unwrap();
    assert_eq!(
        allowed, "authorization,content-type,anthropic-version,x-stainless-lang",
        "every header that SDKs send is allowed"
    );
}

#[tokio::test]
async fn pages_may_read_every_header_of_ours() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let answer = server.post("/generate", &json!({"inputs": "a", "parameters": {"max_new_tokens": 1}})).await;
    let exposed = answer.headers["access-control-expose-headers"].to_str().unwrap();
    let exposed: Vec<&str> = exposed.split(',').collect();
    let ours = answer.headers.keys().filter(|name| name.as_str().starts_with("x-"));
    let hidden: Vec<&str> = ours.map(|name| name.as_str()).filter(|name| !exposed.contains(name)).collect();
    assert_eq!(hidden, Vec::<&str>::new());
    assert!(exposed.contains(&"retry-after") && exposed.contains(&"x-cached-tokens"), "{exposed:?}");
}

#[tokio::test]
async fn any_origin_may_call_unless_some_are_named() {
    for flags in [&[][..], &["--cors-allow-origin=*"]] {
        let server = TestServer::start(FakeShard::default(), flags).await;
        let request = Request::get("/info").header("origin", "https://b.example").body(Body::empty()).unwrap();
        assert_eq!(server.send(request).await.headers["access-control-allow-origin"], "*");
    }
}

#[tokio::test]
async fn a_panic_is_an_answer() {
    let response = super::panicked(Box::new("reason"));
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}
