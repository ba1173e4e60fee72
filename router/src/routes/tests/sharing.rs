//! Tests of several clients on one server: the requests of one client must neither block another client nor reveal
//! their prompts to that client.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::testing::{self, Answer, FakeShard, TestServer};

const KEYS: &str = "--api-key=one,two";

async fn post_as(server: &TestServer, key: &str, path: &str, body: &Value) -> Answer {
    let request = Request::post(path).header("x-api-key", key).header("content-type", "application/json");
    server.send(request.body(Body::from(body.to_string())).unwrap()).await
}

fn completion(n: u32) -> Value {
    json!({"model": "x", "prompt": "a", "n": n, "max_tokens": 2})
}

#[tokio::test]
async fn a_key_cannot_take_every_permit() {
    let steps = Arc::new(Semaphore::new(0));
    let shard = FakeShard { steps: Arc::clone(&steps), ..FakeShard::default() };
    let server = Arc::new(TestServer::start(shard, &[KEYS, "--max-concurrent-requests=8"]).await);
    let refused = post_as(&server, "one", "/v1/completions", &completion(7)).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(refused.text.contains("at most 6 sequences") && refused.text.contains("Given: 7"), "{}", refused.text);
    let ask = |key, n| {
        let server = Arc::clone(&server);
        tokio::spawn(async move { post_as(&server, key, "/v1/completions", &completion(n)).await.status })
    };
    let greedy = ask("one", 6);
    let metrics = || Request::get("/metrics").header("x-api-key", "one").body(Body::empty()).unwrap();
    let has_begun = async || server.send(metrics()).await.text.contains("tgi_request_max_new_tokens_count 6");
    testing::until_async("six sequences of the greedy key", has_begun).await;
    for path in ["/generate", "/tokenize"] {
        let more = post_as(&server, "one", path, &json!({"inputs": "a"})).await;
        assert_eq!(more.status, StatusCode::TOO_MANY_REQUESTS, "{path}: {}", more.text);
    }
    let ordinary = ask("two", 2);
    steps.add_permits(100);
    assert_eq!((greedy.await.unwrap(), ordinary.await.unwrap()), (StatusCode::OK, StatusCode::OK));
    assert_eq!(post_as(&server, "one", "/v1/completions", &completion(6)).await.status, StatusCode::OK);
}

/// Sends the same prompt once for each key and salt in `asked`, and returns how many prompt tokens were cached each
/// time.
async fn num_cached(flags: &[&str], asked: &[(&str, Value)]) -> Vec<String> {
    let server = TestServer::start(FakeShard::default(), flags).await;
    let mut cached = Vec::new();
    for (key, salt) in asked {
        let mut body = json!({"model": "x", "prompt": "word ".repeat(60), "max_tokens": 1});
        if !salt.is_null() {
            body["cache_salt"] = salt.clone();
        }
        let answer = post_as(&server, key, "/v1/completions", &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        cached.push(answer.headers["x-cached-tokens"].to_str().unwrap().to_owned());
    }
    cached
}

#[tokio::test]
async fn keys_do_not_find_each_others_prompts() {
    let both = [("one", Value::Null), ("one", Value::Null), ("two", Value::Null), ("two", Value::Null)];
    let of_keys = num_cached(&[KEYS], &both).await;
    assert_ne!(of_keys[1], "0");
    assert_eq!(of_keys, ["0", &of_keys[1], "0", &of_keys[1]]);
    let shared = num_cached(&[KEYS, "--prefix-caching-by-key=false"], &both).await;
    assert_eq!(shared, ["0", &of_keys[1], &of_keys[1], &of_keys[1]]);
}

/// Tests repeated prompts and several choices of one request. Both reuse the tokens of the prompt only if the shard can
/// skip a prefix.
#[tokio::test]
async fn a_model_that_skips_no_prefix_reads_every_prompt() {
    let body = json!({"model": "x", "prompt": "word ".repeat(60), "n": 3, "max_tokens": 6, "temperature": 0});
    let mut all_choices: Vec<Value> = Vec::new();
    for can_skip_prefix in [false, true] {
        let server = TestServer::start(FakeShard { can_skip_prefix, ..FakeShard::default() }, &[]).await;
        for _ in 0..3 {
            let answer = post_as(&server, "", "/v1/completions", &body).await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
            assert_eq!(answer.headers["x-cached-tokens"] != "0", can_skip_prefix);
            all_choices.push(testing::json(&answer.text)["choices"].clone());
        }
    }
    assert!(all_choices.iter().all(|choices| *choices == all_choices[0]), "{all_choices:?}");
}

#[tokio::test]
async fn a_salt_separates_who_has_one_key() {
    let salts = [json!("a"), json!("b"), json!("a"), Value::Null, Value::Null];
    let cached = num_cached(&[], &salts.map(|salt| ("", salt))).await;
    assert_ne!(cached[2], "0");
    assert_eq!(cached, ["0", "0", &cached[2], "0", &cached[2]]);
    let server = TestServer::start(FakeShard::default(), &[]).await;
    for (path, body) in [
        ("/v1/completions", json!({"model": "x", "prompt": "a", "cache_salt": ""})),
        ("/generate", json!({"inputs": "a", "parameters": {"cache_salt": ""}})),
    ] {
        let refused = server.post(path, &body).await;
        assert!(refused.status.is_client_error(), "{}", refused.text);
        assert!(refused.text.contains("`cache_salt` must be a non-empty string"), "{}", refused.text);
    }
}

#[tokio::test]
async fn long_stop_strings_are_refused() {
    let server = TestServer::start(FakeShard::default(), &["--max-stop-sequences=100"]).await;
    let post = |stop: Value| {
        let server = &server;
        async move {
            let parameters = json!({"stop": stop, "max_new_tokens": 1});
            server.post("/generate", &json!({"inputs": "a", "parameters": parameters})).await
        }
    };
    assert_eq!(post(json!(["a".repeat(1024)])).await.status, StatusCode::OK);
    for (stop, expected) in [
        (json!(["a".repeat(1025)]), "at most 1024 bytes. Given: one with 1025"),
        (json!(vec!["a".repeat(1000); 17]), "at most 16384 bytes together. Given: 17000"),
    ] {
        let refused = post(stop).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(refused.text.contains(expected), "{}", refused.text);
    }
}

#[tokio::test]
async fn instances_are_as_many_as_prompts_may_be() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let instances =
        |count| json!({"instances": vec![json!({"inputs": "a", "parameters": {"max_new_tokens": 1}}); count]});
    assert_eq!(server.post("/vertex", &instances(4)).await.status, StatusCode::OK);
    let refused = server.post("/vertex", &instances(5)).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(refused.text.contains("maximum allowed batch size of 4"), "{}", refused.text);
}

#[tokio::test]
async fn texts_that_are_only_tokenized_have_the_limit_of_prompts() {
    let server = TestServer::start(FakeShard::default(), &["--max-input-tokens=20", "--max-total-tokens=30"]).await;
    let text = "a".repeat((64 << 10) + 1);
    let messages = json!([{"role": "user", "content": text}]);
    for (path, body) in [
        ("/tokenize", json!({"inputs": text})),
        ("/chat_tokenize", json!({"messages": messages})),
        ("/v1/messages/count_tokens", json!({"model": "x", "messages": messages})),
    ] {
        let refused = server.post(path, &body).await;
        assert!(refused.status.is_client_error(), "{path}: {}", refused.text);
        assert!(refused.text.contains("must have at most 65536 bytes"), "{path}: {}", refused.text);
    }
}

#[tokio::test]
async fn choices_with_a_seed_have_the_next_ones() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let text = |answer: &Value, index: usize| answer["choices"][index]["text"].clone();
    let ask = |n: u32, seed: u64| json!({"model": "x", "prompt": "a", "n": n, "seed": seed, "max_tokens": 5});
    let both = server.post_ok("/v1/completions", &ask(2, 7)).await;
    for (index, seed) in [(0, 7), (1, 8)] {
        let alone = server.post_ok("/v1/completions", &ask(1, seed)).await;
        assert_eq!(text(&both, index), text(&alone, 0));
    }
    assert_eq!(
        both["usage"]["prompt_tokens"],
        server.post_ok("/v1/completions", &ask(1, 7)).await["usage"]["prompt_tokens"]
    );
}
