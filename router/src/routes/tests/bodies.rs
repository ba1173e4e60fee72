//! Tests of request bodies that are sent by web pages, are compressed, have a byte order mark, arrive slowly or never
//! end, or need too much memory.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode, header};
use futures_util::stream::{self, StreamExt};

use crate::testing::{Answer, FakeShard, TestServer, json};

const BODY: &str = r#"{"inputs":"a","parameters":{"max_new_tokens":1}}"#;

/// Returns a body that begins with `text` and never ends.
fn half(text: String) -> Body {
    let first = stream::once(async { Ok::<_, Infallible>(Bytes::from(text)) });
    Body::from_stream(first.chain(stream::pending()))
}

async fn post_to(server: &TestServer, path: &str, body: impl Into<Body>) -> Answer {
    server.send(Request::post(path).body(body.into()).unwrap()).await
}

async fn post(server: &TestServer, headers: &[(header::HeaderName, &str)], body: impl Into<Body>) -> Answer {
    let mut request = Request::post("/generate");
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    server.send(request.body(body.into()).unwrap()).await
}

#[tokio::test]
async fn bodies_other_than_plain_json_are_refused_by_their_headers() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let (origin, kind, encoding) = (header::ORIGIN, header::CONTENT_TYPE, header::CONTENT_ENCODING);
    let page = (origin, "https://a.example");
    let cases: [(&[_], StatusCode); 10] = [
        (&[], StatusCode::OK),
        (&[(kind.clone(), "text/plain")], StatusCode::OK),
        (&[page.clone(), (kind.clone(), "application/json")], StatusCode::OK),
        (&[page.clone(), (kind.clone(), "Application/JSON; charset=utf-8")], StatusCode::OK),
        (&[page.clone(), (kind.clone(), "application/vnd.api+json")], StatusCode::OK),
        (&[page.clone(), (kind.clone(), "text/plain; x=application/json")], StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (std::slice::from_ref(&page), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (&[page.clone(), (kind, "multipart/form-data; boundary=+json")], StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (&[(encoding.clone(), "identity")], StatusCode::OK),
        (&[(encoding, "gzip")], StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ];
    for (headers, status) in cases {
        let answer = post(&server, headers, BODY).await;
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.text);
        if status != StatusCode::OK {
            assert_eq!(json(&answer.text)["error_type"], "unsupported_media_type");
            assert_eq!(answer.headers[header::CONNECTION], "close", "the body was not read");
        }
    }
}

#[tokio::test]
async fn marks_in_front_of_the_text() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let answer = post(&server, &[], format!("\u{feff}{BODY}")).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let utf16: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let answer = post(&server, &[], utf16).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.text.contains("UTF-16"), "{}", answer.text);
}

#[tokio::test]
async fn a_body_that_stalls_or_crawls_is_given_up() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let every = |pause: Duration, bytes: usize| {
        let piece = move |()| async move {
            tokio::time::sleep(pause).await;
            Some((Ok::<_, Infallible>(Bytes::from(vec![b' '; bytes])), ()))
        };
        Body::from_stream(stream::unfold((), piece))
    };
    // While tokio's time is paused, it advances whenever all tasks wait.
    tokio::time::pause();
    let cases = [
        (half(" ".repeat(100_000)), 10, "fewer than 4096 bytes of it arrived within 10 seconds"),
        (every(Duration::from_secs(1), 1), 10, "fewer than 4096 bytes"),
        (every(Duration::from_secs(9), 4096), 30, "did not arrive within 30 seconds"),
        (every(Duration::from_secs(1), 50_000), 40, "length limit exceeded"),
    ];
    for (body, seconds, sentence) in cases {
        let start = tokio::time::Instant::now();
        let answer = post(&server, &[], body).await;
        assert!(answer.text.contains(sentence), "{}", answer.text);
        assert!(start.elapsed().as_secs().abs_diff(seconds) <= 1, "{sentence}: {:?}", start.elapsed());
    }
}

/// Returns the start of a body whose values take more than half of the memory for bodies. They fit into that memory
/// even if the test process itself is large.
fn hungry() -> String {
    "[".repeat(700_000)
}

#[tokio::test]
async fn bodies_take_no_more_memory_than_they_may() {
    let server = TestServer::start(FakeShard::default(), &["--memory-budget=1GiB"]).await;
    tokio::time::pause();
    let while_it_is_held = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        for path in ["/generate", "/v1/completions", "/v1/chat/completions", "/v1/messages"] {
            let refused = post_to(&server, path, hungry()).await;
            assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{path}: {}", refused.text);
            assert_eq!(refused.headers[header::RETRY_AFTER], "1");
            let error = &json(&refused.text)["error"];
            let sentence = error.as_str().or(error["message"].as_str()).unwrap();
            assert!(sentence.contains("`--memory-budget`"), "{sentence}");
        }
        let small = post(&server, &[], BODY).await;
        assert_eq!(small.status, StatusCode::OK, "small bodies have a part of the budget of their own: {}", small.text);
    };
    let (held, ()) = tokio::join!(post(&server, &[], half(hungry())), while_it_is_held);
    assert_eq!(held.status, StatusCode::REQUEST_TIMEOUT, "{}", held.text);
    tokio::time::resume();
    let later = post(&server, &[], hungry()).await;
    assert_eq!(later.status, StatusCode::UNPROCESSABLE_ENTITY, "the memory was freed: {}", later.text);
    let never = post(&server, &[], "[".repeat(1_900_000)).await;
    assert_eq!(never.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", never.text);
}
