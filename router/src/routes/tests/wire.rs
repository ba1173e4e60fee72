//! Tests that compare the responses of TGI's routes with recorded ones, byte for byte: status, headers, bodies and
//! events. docs/compatibility.md lists the differences from TGI.
//!
//! The fake shard's tokens depend only on the prompt and the sampling parameters, so bodies are equal in each run.
//! Header values that vary from run to run are left out.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use tokio::sync::Semaphore;

use crate::lifecycle::Stage;
use crate::testing::{Answer, FakeShard, TestServer};

/// True for headers whose values vary from run to run.
fn is_different_each_time(name: &str) -> bool {
    name.ends_with("-time") || name == "x-request-id" || name == "x-time-per-token"
}

/// Sends a request and returns it with its response as text.
async fn exchange(server: &TestServer, request: &str, body: &str) -> String {
    let (method, path) = request.split_once(' ').unwrap();
    let sent = Request::builder().method(method).uri(path).body(Body::from(body.to_owned())).unwrap();
    let answer = server.send(sent).await;
    let mut text = format!("> {request}\n");
    if !body.is_empty() && body.len() < 1000 {
        let _ = writeln!(text, "> {body}");
    }
    transcript(&text, &answer)
}

/// Returns the text `sent`, followed by the response with its headers sorted.
fn transcript(sent: &str, answer: &Answer) -> String {
    let mut text = format!("{sent}{}\n", answer.status);
    let mut headers: Vec<String> = answer
        .headers
        .iter()
        .map(|(name, value)| {
            let value = if is_different_each_time(name.as_str()) { "…" } else { value.to_str().unwrap() };
            format!("{name}: {value}\n")
        })
        .collect();
    headers.sort();
    text.extend(headers);
    text + "\n" + &answer.text + "\n\n"
}

async fn exchanges(server: &TestServer, requests: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (request, body) in requests {
        text += &exchange(server, request, body).await;
    }
    text
}

#[tokio::test]
async fn generations() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let text = exchanges(
        &server,
        &[
            ("POST /generate", r#"{"inputs":"Once","parameters":{"max_new_tokens":3}}"#),
            ("POST /generate", r#"{"inputs":"Once","parameters":{"max_new_tokens":2,"details":true}}"#),
            (
                "POST /generate",
                r#"{"inputs":"Once","parameters":{"max_new_tokens":2,"decoder_input_details":true,"top_n_tokens":2}}"#,
            ),
            (
                "POST /generate",
                r#"{"inputs":"Once","parameters":{"max_new_tokens":2,"do_sample":true,"seed":7,"details":true}}"#,
            ),
            ("POST /generate", r#"{"inputs":"Once","parameters":{"max_new_tokens":1,"return_full_text":true}}"#),
            ("POST /", r#"{"inputs":"Once","parameters":{"max_new_tokens":2}}"#),
            ("POST /invocations", r#"{"inputs":"Once","parameters":{"max_new_tokens":2}}"#),
            ("POST /vertex", r#"{"instances":[{"inputs":"Once","parameters":{"max_new_tokens":2}}]}"#),
        ],
    )
    .await;
    insta::assert_snapshot!(text);
}

#[tokio::test]
async fn streams() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let text = exchanges(
        &server,
        &[
            ("POST /generate_stream", r#"{"inputs":"Once","parameters":{"max_new_tokens":3}}"#),
            (
                "POST /generate_stream",
                r#"{"inputs":"Once","parameters":{"max_new_tokens":2,"details":true,"top_n_tokens":2}}"#,
            ),
            ("POST /", r#"{"inputs":"Once","parameters":{"max_new_tokens":2},"stream":true}"#),
        ],
    )
    .await;
    insta::assert_snapshot!(text);
}

#[tokio::test]
async fn texts_and_facts() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let text = exchanges(
        &server,
        &[
            ("POST /tokenize", r#"{"inputs":"Once upon"}"#),
            ("POST /chat_tokenize", r#"{"messages":[{"role":"user","content":"Hi"}]}"#),
            ("GET /info", ""),
            ("GET /v1/models", ""),
            ("GET /health", ""),
            ("GET /ping", ""),
            ("GET /", ""),
        ],
    )
    .await;
    insta::assert_snapshot!(text);
}

#[tokio::test]
async fn refusals() {
    let server = TestServer::start(FakeShard::default(), &["--payload-limit=1000", "--max-total-tokens=64"]).await;
    let mut text = exchanges(
        &server,
        &[
            ("POST /generate", "{"),
            ("POST /generate", r#"{"input":"Once"}"#),
            ("POST /generate", r#"{"inputs":"Once","parameters":{"top_k":"many"}}"#),
            ("POST /generate", &format!(r#"{{"inputs":"{}"}}"#, "a".repeat(1000))),
            ("GET /generate", ""),
            ("GET /nowhere", ""),
            ("POST /vertex", r#"{"instances":[]}"#),
            ("POST /invocations", "{}"),
            ("POST /chat_tokenize", r#"{"messages":[]}"#),
        ],
    )
    .await;
    for parameters in [
        r#""best_of":9"#,
        r#""best_of":2"#,
        r#""best_of":2,"do_sample":true,"seed":1"#,
        r#""temperature":0.0"#,
        r#""repetition_penalty":0"#,
        r#""frequency_penalty":3"#,
        r#""top_p":2"#,
        r#""typical_p":0"#,
        r#""top_k":0"#,
        r#""max_new_tokens":0"#,
        r#""stop":["a","b","c","d","e"]"#,
        r#""truncate":0"#,
        r#""top_n_tokens":9"#,
        r#""max_new_tokens":64"#,
        r#""adapter_id":"x""#,
    ] {
        let body = format!(r#"{{"inputs":"Once","parameters":{{{parameters}}}}}"#);
        text += &exchange(&server, "POST /generate", &body).await;
    }
    let body = r#"{"inputs":"Once","parameters":{"best_of":2,"do_sample":true}}"#;
    text += &exchange(&server, "POST /generate_stream", body).await;
    text += &exchange(&server, "POST /generate", r#"{"inputs":""}"#).await;
    insta::assert_snapshot!(text);
}

#[tokio::test]
async fn a_stranger() {
    let server = TestServer::start(FakeShard::default(), &["--api-key=secret"]).await;
    insta::assert_snapshot!(exchange(&server, "POST /generate", r#"{"inputs":"Once"}"#).await);
}

#[tokio::test]
async fn an_overload() {
    let shard = FakeShard { steps: Arc::new(Semaphore::new(0)), ..FakeShard::default() };
    let steps = Arc::clone(&shard.steps);
    let server = TestServer::start(shard, &["--max-concurrent-requests=1"]).await;
    let body = r#"{"inputs":"Once","parameters":{"max_new_tokens":1}}"#;
    let second = async {
        server.wait_for_metric("tgi_request_count 1").await;
        let refused = exchange(&server, "POST /generate", body).await;
        let refused = refused + &exchange(&server, "POST /generate_stream", body).await;
        steps.add_permits(1000);
        refused
    };
    let (first, refused) = tokio::join!(exchange(&server, "POST /generate", body), second);
    assert!(first.contains(StatusCode::OK.as_str()), "{first}");
    insta::assert_snapshot!(refused);
}

#[tokio::test]
async fn failures() {
    let shard = FakeShard { dies_at_step: Some(2), ..FakeShard::default() };
    let server = TestServer::start(shard, &["--step-window=1"]).await;
    let body = r#"{"inputs":"Once","parameters":{"max_new_tokens":5}}"#;
    let text = exchange(&server, "POST /generate_stream", body).await;
    insta::assert_snapshot!(text);
}

#[tokio::test]
async fn a_server_that_stops() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    server.shutdown.advance(Stage::Draining);
    insta::assert_snapshot!(exchanges(&server, &[("GET /health", ""), ("GET /ping", ""), ("GET /", "")]).await);
}

#[tokio::test]
async fn too_late() {
    let shard = FakeShard { steps: Arc::new(Semaphore::new(0)), ..FakeShard::default() };
    let steps = Arc::clone(&shard.steps);
    let server = TestServer::start(shard, &["--request-timeout=1"]).await;
    let body = r#"{"inputs":"Once","parameters":{"max_new_tokens":5}}"#;
    let start = Instant::now();
    let until_it_is_over = async {
        while start.elapsed() <= Duration::from_secs(1) {
            tokio::task::yield_now().await;
        }
        steps.add_permits(1000);
    };
    let (whole, ()) = tokio::join!(exchange(&server, "POST /generate", body), until_it_is_over);
    insta::assert_snapshot!(whole);
}

#[tokio::test]
async fn a_body_that_does_not_come() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let never = Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>());
    // While tokio's time is paused, it advances whenever all tasks wait.
    tokio::time::pause();
    let answer = server.send(Request::post("/generate").body(never).unwrap());
    insta::assert_snapshot!(transcript("> POST /generate\n", &answer.await));
}
