//! Tests of requests that fail: the server refuses them, the client disconnects, or the shard or the server ends them.
//!
//! The tests of requests that end early also check that the slots and blocks are free again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use proto::RowFailure;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::lifecycle::Stage;
use crate::testing::{FakeShard, TestServer};

#[tokio::test]
async fn errors_have_status_type_and_text_also_for_streams() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    for path in ["/generate", "/generate_stream", "/"] {
        let body = json!({"inputs": "a", "parameters": {"temperature": 0.0}, "stream": true});
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
        let text = "Input validation error: `temperature` must be strictly positive";
        assert_eq!(crate::testing::json(&answer.text), json!({"error": text, "error_type": "validation"}));
    }
    let post = |body: &'static str| {
        Request::post("/generate").header("content-type", "text/plain").body(Body::from(body)).unwrap()
    };
    for (body, status, error_type) in [
        ("{", StatusCode::BAD_REQUEST, "invalid_request"),
        (r#"{"input":"a"}"#, StatusCode::UNPROCESSABLE_ENTITY, "validation"),
    ] {
        let answer = server.send(post(body)).await;
        assert_eq!((answer.status, &crate::testing::json(&answer.text)["error_type"]), (status, &json!(error_type)));
    }
    server.wait_for_metric("tgi_request_failure{err=\"validation\"} 3").await;
}

#[tokio::test]
async fn bodies_and_routes_that_are_not_ours_are_named() {
    let server = TestServer::start(FakeShard::default(), &["--payload-limit=100"]).await;
    let answer = server.post("/generate", &json!({"inputs": "a".repeat(100)})).await;
    assert_eq!(
        (answer.status, &answer.headers[header::CONNECTION]),
        (StatusCode::PAYLOAD_TOO_LARGE, &"close".parse().unwrap())
    );
    assert!(answer.text.contains("length limit exceeded: at most 100 bytes"), "{}", answer.text);
    let answer = server.get("/v1/nothing").await;
    assert_eq!((answer.status, answer.text.contains("GET /v1/nothing is not a route")), (StatusCode::NOT_FOUND, true));
    let answer = server.get("/generate").await;
    assert_eq!(
        (answer.status, answer.text.contains("/generate does not accept GET")),
        (StatusCode::METHOD_NOT_ALLOWED, true)
    );
}

#[tokio::test]
async fn too_many_requests_are_told_to_come_back() {
    let shard = FakeShard { steps: Arc::new(Semaphore::new(0)), ..FakeShard::default() };
    let steps = Arc::clone(&shard.steps);
    let server = TestServer::start(shard, &["--max-concurrent-requests=2"]).await;
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 2}});
    let overload = async {
        server.wait_for_metric("tgi_request_count 2").await;
        for path in ["/generate", "/generate_stream"] {
            let answer = server.post(path, &body).await;
            assert_eq!(
                (answer.status, &answer.headers[header::RETRY_AFTER]),
                (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap())
            );
            assert_eq!(
                crate::testing::json(&answer.text),
                json!({"error": "Model is overloaded", "error_type": "overloaded"})
            );
        }
        assert_eq!(server.get("/health").await.status, StatusCode::OK);
        steps.add_permits(1000);
    };
    let (first, second, ()) =
        tokio::join!(server.post("/generate", &body), server.post("/generate_stream", &body), overload);
    assert_eq!((first.status, second.status), (StatusCode::OK, StatusCode::OK));
    assert_eq!(server.post("/generate", &body).await.status, StatusCode::OK);
}

#[tokio::test]
async fn too_many_waiting_tokens_are_told_to_come_back() {
    let shard = FakeShard { steps: Arc::new(Semaphore::new(0)), ..FakeShard::default() };
    let steps = Arc::clone(&shard.steps);
    let server = TestServer::start(shard, &["--max-batch-size=1", "--max-queued-tokens=3"]).await;
    // The prompt has two tokens: a special token and "a". While the first request runs, the second one waits, and there
    // is no room in the queue for the two tokens of a third one.
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 1}});
    let overload = async {
        server.wait_for_metric("tgi_queue_size 1").await;
        let answer = server.post("/generate_stream", &body).await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{}", answer.text);
        assert_eq!(crate::testing::json(&answer.text)["error_type"], "overloaded");
        assert!(answer.headers.contains_key(header::RETRY_AFTER));
        steps.add_permits(1000);
    };
    let waiting = async {
        server.wait_for_metric("tgi_batch_current_size 1").await;
        server.post("/generate_stream", &body).await
    };
    let (first, second, ()) = tokio::join!(server.post("/generate", &body), waiting, overload);
    assert_eq!((first.status, second.status), (StatusCode::OK, StatusCode::OK));
    assert_eq!(
        server.post("/generate", &body).await.status,
        StatusCode::OK,
        "a request that has left the queue no longer counts"
    );
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_told_so() {
    let shard = FakeShard { steps: Arc::new(Semaphore::new(0)), ..FakeShard::default() };
    let steps = Arc::clone(&shard.steps);
    let server = TestServer::start(shard, &["--max-batch-size=1", "--request-timeout=1"]).await;
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 200}});
    let start = Instant::now();
    let until_it_is_over = async {
        while start.elapsed() <= Duration::from_secs(1) {
            tokio::task::yield_now().await;
        }
        steps.add_permits(1000);
    };
    let (whole, stream, ()) =
        tokio::join!(server.post("/generate", &body), server.post("/generate_stream", &body), until_it_is_over);
    let expected =
        json!({"error": "Request timed out: it took longer than `--request-timeout` allows", "error_type": "timeout"});
    assert_eq!((whole.status, crate::testing::json(&whole.text)), (StatusCode::GATEWAY_TIMEOUT, expected.clone()));
    let last = stream.events().pop().unwrap();
    assert_eq!((stream.status, last), (StatusCode::OK, expected));
    server.wait_for_metric("tgi_request_failure{err=\"timeout\"} 2").await;
    for line in ["hilo_slots_used 0", "hilo_kv_blocks_used 0", "tgi_queue_size 0"] {
        server.wait_for_metric(line).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_gives_everything_back() {
    let shard = FakeShard { steps: Arc::new(Semaphore::new(3)), ..FakeShard::default() };
    let (steps, stats) = (Arc::clone(&shard.steps), Arc::clone(&shard.stats));
    let server = TestServer::start(shard, &["--max-batch-size=1"]).await;
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 200}});
    let are_there = async {
        server.wait_for_metric("tgi_request_max_new_tokens_count 2").await;
        steps.add_permits(1);
        server.wait_for_metric("tgi_queue_size 1").await;
    };
    tokio::select! {
        _ = server.post("/generate_stream", &body) => panic!("the request cannot end"),
        _ = server.post("/generate", &body) => panic!("the request cannot end"),
        () = are_there => {}
    }
    steps.add_permits(1);
    server.wait_for_metric("tgi_request_failure{err=\"dropped\"} 2").await;
    for line in ["hilo_slots_used 0", "hilo_kv_blocks_used 0", "tgi_queue_size 0"] {
        server.wait_for_metric(line).await;
    }
    assert_eq!(stats.num_opened.load(Ordering::Relaxed), 1, "the waiting request was never read");
}

#[tokio::test]
async fn when_the_shard_dies_every_request_is_told_once() {
    let steps = Arc::new(Semaphore::new(1));
    let shard = FakeShard { dies_at_step: Some(5), steps: Arc::clone(&steps), ..FakeShard::default() };
    let server = TestServer::start(shard, &[]).await;
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 100}});
    let both_are_there = async {
        server.wait_for_metric("tgi_request_max_new_tokens_count 2").await;
        steps.add_permits(10);
    };
    let (whole, streamed, ()) =
        tokio::join!(server.post("/generate", &body), server.post("/generate_stream", &body), both_are_there);
    let expected = json!({
        "error": "Request failed during generation: Server error: shard 0 closed the connection",
        "error_type": "generation",
    });
    assert_eq!((whole.status, crate::testing::json(&whole.text)), (StatusCode::FAILED_DEPENDENCY, expected.clone()));
    let events = streamed.events();
    assert!(events.len() > 1, "{events:?}");
    assert_eq!(events.last(), Some(&expected));
    assert!(events.iter().rev().skip(1).all(|event| event.get("error").is_none()));
    assert!(server.batcher.await.unwrap().is_err());
}

#[tokio::test]
async fn a_row_that_fails_ends_alone_and_everybody_else_goes_on() {
    for (kind, reason) in [
        (RowFailure::NotFinite, "the model computed values that are not finite for this sequence"),
        (RowFailure::NothingAllowed, "the grammar allows no next token"),
    ] {
        // A row whose prompt is "x" (token 93) fails after three generated tokens.
        let fails = move |tokens: &[u32]| (tokens.len() == 5 && tokens[1] == 93).then_some(kind);
        let steps = Arc::new(Semaphore::new(0));
        let shard = FakeShard { fails: Arc::new(fails), steps: Arc::clone(&steps), ..FakeShard::default() };
        let server = TestServer::start(shard, &[]).await;
        let body = |inputs: &str| json!({"inputs": inputs, "parameters": {"max_new_tokens": 9}});
        let (failing, ordinary) = (body("x"), body("a"));
        let all_are_there = async {
            server.wait_for_metric("tgi_request_max_new_tokens_count 4").await;
            steps.add_permits(100);
        };
        let (whole, streamed, other, other_stream, ()) = tokio::join!(
            server.post("/generate", &failing),
            server.post("/generate_stream", &failing),
            server.post("/generate", &ordinary),
            server.post("/generate_stream", &ordinary),
            all_are_there
        );
        let error = format!("Request failed during generation: {reason}");
        let expected = json!({"error": error, "error_type": "generation"});
        assert_eq!(
            (whole.status, crate::testing::json(&whole.text)),
            (StatusCode::FAILED_DEPENDENCY, expected.clone())
        );
        let events = streamed.events();
        assert_eq!((events.len(), events.last()), (4, Some(&expected)), "{events:?}");
        assert_eq!((other.status, other_stream.events().len()), (StatusCode::OK, 9), "{}", other.text);
        server.wait_for_metric("hilo_row_failures_total 2").await;
        for line in ["hilo_slots_used 0", "hilo_kv_blocks_used 0", "tgi_queue_size 0", "tgi_batch_current_size 0"] {
            server.wait_for_metric(line).await;
        }
        assert_eq!(server.get("/health").await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn stopping_ends_what_runs_with_an_error_and_says_goodbye() {
    let shard = FakeShard { steps: Arc::new(Semaphore::new(3)), ..FakeShard::default() };
    let (steps, stats) = (Arc::clone(&shard.steps), Arc::clone(&shard.stats));
    let server = TestServer::start(shard, &[]).await;
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 100}});
    let stop = async {
        server.wait_for_metric("tgi_batch_inference_count{method=\"decode\"} 3").await;
        server.shutdown.advance(Stage::Ending);
    };
    let (streamed, ()) = tokio::join!(server.post("/generate_stream", &body), stop);
    server.stop_tx.send_replace(true);
    let error = streamed.events().pop().unwrap()["error"].clone();
    insta::assert_snapshot!(
        error.as_str().unwrap(),
        @"the server is shutting down; send the request again, to another server"
    );
    steps.add_permits(2);
    server.batcher.await.unwrap().unwrap();
    assert_eq!(stats.num_leaves.load(Ordering::Relaxed), 1);
}
