//! Tests of OpenAI's routes: the shapes of responses, deltas, stop strings, several choices, and errors as OpenAI's
//! clients read them.

use std::sync::Arc;

use axum::http::StatusCode;
use model_files::ModelFiles;
use serde_json::{Value, json};

use crate::testing::{Answer, FakeShard, TestServer, json as parse};
use crate::text::Tokenizer;

/// Returns a fake shard that answers every prompt with `text`, one character at a time, then ends the sequence.
pub(super) fn saying(text: &str) -> FakeShard {
    let tokenizer = Tokenizer::load(&ModelFiles::Demo).unwrap();
    let script = text.chars().flat_map(|character| tokenizer.tokenize_bare(&character.to_string()).unwrap());
    saying_tokens(script.chain([1]).collect())
}

/// Returns a shard that generates these tokens.
pub(super) fn saying_tokens(script: Vec<u32>) -> FakeShard {
    let script_of = move |tokens: &[u32], _: &_| {
        let said = (0..script.len()).rev().find(|len| tokens.ends_with(&script[..*len])).unwrap_or(0);
        script[said]
    };
    FakeShard { next_token: Arc::new(script_of), ..FakeShard::default() }
}

/// Returns the chunks of a stream, which must end with `[DONE]`.
pub(super) fn chunks(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let text = answer.text.strip_suffix("data: [DONE]\n\n").unwrap_or_else(|| panic!("{}", answer.text));
    text.split_terminator("\n\n").map(|event| parse(event.strip_prefix("data: ").unwrap())).collect()
}

pub(super) fn chat(changes: &Value) -> Value {
    let mut body = json!({"model": "x", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0});
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    body
}

fn without_identity(mut answer: Value) -> Value {
    let object = answer.as_object_mut().unwrap();
    let id = object.remove("id").unwrap();
    assert!(id.as_str().unwrap().len() > 20, "{id}");
    assert!(object.remove("created").unwrap().as_u64().unwrap() > 1_700_000_000);
    assert_eq!(object.remove("model").unwrap(), "demo");
    assert_eq!(object.remove("system_fingerprint").unwrap(), "0.1.0-b0b1b2b3b4b5-1-cpu-avx2");
    answer
}

#[tokio::test]
async fn a_chat_is_answered_in_one_piece() {
    let server = TestServer::start(saying("Hi there"), &[]).await;
    let answer = server.post("/v1/chat/completions", &chat(&json!({}))).await;
    assert!(answer.headers.contains_key("x-total-time") && answer.headers.contains_key("x-request-id"));
    let mut answer = without_identity(parse(&answer.text));
    let prompt_tokens = answer["usage"]["prompt_tokens"].take().as_u64().unwrap();
    let total_tokens = answer["usage"]["total_tokens"].take().as_u64().unwrap();
    assert_eq!(total_tokens, prompt_tokens + 9);
    assert_eq!(
        answer,
        json!({"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop", "logprobs": null,
            "message": {"role": "assistant", "content": "Hi there"}}],
            "usage": {"prompt_tokens": null, "completion_tokens": 9, "total_tokens": null,
                "prompt_tokens_details": {"cached_tokens": 0}}})
    );
}

#[tokio::test]
async fn a_chat_streams_who_then_what_then_why() {
    let server = TestServer::start(saying("Hi"), &[]).await;
    let body = chat(&json!({"stream": true, "stream_options": {"include_usage": true}}));
    let answer = server.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let chunks = chunks(&answer);
    let ids: Vec<&Value> = chunks.iter().map(|chunk| &chunk["id"]).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "all chunks have the same id: {ids:?}");
    let deltas: Vec<Value> = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap().clone()).collect();
    let choice = |delta: Value, finish_reason: Value| json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason});
    assert_eq!(
        deltas,
        [
            choice(json!({"role": "assistant", "content": ""}), Value::Null),
            choice(json!({"content": "H"}), Value::Null),
            choice(json!({"content": "i"}), Value::Null),
            choice(json!({}), json!("stop")),
        ]
    );
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(3)));
    assert!(others.iter().all(|chunk| chunk.get("usage").is_none()));
    let without = server.post("/v1/chat/completions", &chat(&json!({"stream": true}))).await;
    assert!(self::chunks(&without).iter().all(|chunk| chunk.get("usage").is_none()));
}

#[tokio::test]
async fn a_stop_string_is_never_seen() {
    let server = TestServer::start(saying("one, two, three. four"), &[]).await;
    for (stop, expected) in
        [(json!(", t"), "one"), (json!(["three.", "zzz"]), "one, two, "), (json!(", x"), "one, two, three. four")]
    {
        let body = chat(&json!({"stop": stop}));
        let whole = server.post_ok("/v1/chat/completions", &body).await;
        assert_eq!(whole["choices"][0]["message"]["content"], expected, "{stop}");
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        let body = chat(&json!({"stop": stop, "stream": true}));
        let chunks = chunks(&server.post("/v1/chat/completions", &body).await);
        let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
        assert_eq!(deltas.collect::<String>(), expected, "{stop}");
    }
}

#[tokio::test]
async fn log_probabilities_come_with_bytes() {
    let server = TestServer::start(saying("Hi"), &[]).await;
    let body = chat(&json!({"logprobs": true, "top_logprobs": 2}));
    let answer = server.post_ok("/v1/chat/completions", &body).await;
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 3, "the end of the sequence is a token too");
    assert_eq!((&content[0]["token"], &content[0]["bytes"]), (&json!("H"), &json!([72])));
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 2);
    let streamed =
        chunks(&server.post("/v1/chat/completions", &chat(&json!({"logprobs": true, "stream": true}))).await);
    let with_logprobs = streamed.iter().filter(|chunk| chunk["choices"][0]["logprobs"].is_object());
    assert_eq!(with_logprobs.count(), 3);
}

#[tokio::test]
async fn several_choices_have_their_own_seeds() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "n": 3, "seed": 7, "max_tokens": 6});
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap();
        assert!(choices.iter().enumerate().all(|(index, choice)| choice["index"] == index));
        choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let answer = server.post_ok("/v1/chat/completions", &body).await;
    let first = texts(&answer);
    assert!(first[0] != first[1] && first[1] != first[2], "{first:?}");
    assert_eq!(answer["usage"]["completion_tokens"], 18);
    assert_eq!(texts(&server.post_ok("/v1/chat/completions", &body).await), first);
    let mut body = body;
    body["stream"] = json!(true);
    let mut streamed = vec![String::new(); 3];
    for chunk in chunks(&server.post("/v1/chat/completions", &body).await) {
        let choice = &chunk["choices"][0];
        streamed[choice["index"].as_u64().unwrap() as usize] += choice["delta"]["content"].as_str().unwrap_or_default();
    }
    assert_eq!(streamed, first);
}

#[tokio::test]
async fn completions_take_every_form_of_a_prompt() {
    let server = TestServer::start(saying("!"), &[]).await;
    for (prompt, num_choices) in
        [(json!("a"), 1), (json!(["a", "b"]), 2), (json!([20, 21, 22]), 1), (json!([[20, 21], [22]]), 2)]
    {
        let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 5});
        let answer = without_identity(server.post_ok("/v1/completions", &body).await);
        assert_eq!(answer["object"], "text_completion");
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), num_choices, "{prompt}");
        for (index, choice) in choices.iter().enumerate() {
            assert_eq!(*choice, json!({"index": index, "text": "!", "logprobs": null, "finish_reason": "stop"}));
        }
        assert_eq!(answer["usage"]["completion_tokens"], 2 * num_choices);
    }
    let body = json!({"prompt": "ab", "temperature": 0, "echo": true, "logprobs": 1});
    let choice = server.post_ok("/v1/completions", &body).await["choices"][0].clone();
    assert_eq!(choice["text"], "ab!");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    let num_tokens = logprobs["tokens"].as_array().unwrap().len();
    for list in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), num_tokens, "{list}");
    }
    let streamed =
        chunks(&server.post("/v1/completions", &json!({"prompt": "a", "temperature": 0, "stream": true})).await);
    let texts = streamed.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap());
    assert_eq!(texts.collect::<String>(), "!");
    assert_eq!(streamed.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn errors_are_objects_with_a_message() {
    let server = TestServer::start(FakeShard::default(), &["--max-client-batch-size=2"]).await;
    let user = json!([{"role": "user", "content": "x"}]);
    for (path, body, status, message) in [
        ("/v1/chat/completions", json!({}), 422, "missing field `messages`"),
        ("/v1/chat/completions", json!({"messages": user, "temperature": "x"}), 422, "temperature: invalid type"),
        (
            "/v1/chat/completions",
            json!({"messages": user, "temperature": -1.0}),
            422,
            "`temperature` must be strictly positive",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": user, "max_tokens": 0}),
            422,
            "`max_tokens` must be strictly positive",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": user, "max_tokens": 2, "min_tokens": 3}),
            422,
            "`min_tokens` must be <= 2, the maximum number of tokens",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": user, "ignore_eos": true, "response_format": {"type": "json_object"}}),
            422,
            "`ignore_eos` cannot be given together with a grammar",
        ),
        ("/v1/chat/completions", json!({"messages": user, "n": 0}), 422, "n: must be between 1 and 128. Given: 0"),
        ("/v1/chat/completions", json!({"messages": user, "top_logprobs": 2}), 422, "top_logprobs: needs logprobs"),
        ("/v1/chat/completions", json!({"messages": user, "tools": [{}]}), 422, "tools[0].type: must be \"function\""),
        ("/v1/chat/completions", json!({"messages": []}), 422, "messages: there must be at least one"),
        ("/v1/completions", json!({"prompt": {}}), 422, "expected a string, a list of strings"),
        ("/v1/completions", json!({"prompt": ["a", "b", "c"]}), 422, "maximum allowed batch size of 2"),
        ("/v1/completions", json!({"prompt": []}), 422, "`inputs` cannot be empty"),
        ("/v1/completions", json!({"prompt": [999_999]}), 422, "token id 999999 is outside"),
        ("/v1/completions", json!({"prompt": "a", "suffix": "b"}), 422, "`suffix` is not supported by this server"),
    ] {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text);
        let error = &parse(&answer.text)["error"];
        assert!(error["message"].as_str().unwrap().contains(message), "{body}: {error}");
        assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &Value::Null), "{body}");
    }
}

#[tokio::test]
async fn a_failure_in_a_stream_is_its_last_chunk() {
    let shard = FakeShard { dies_at_step: Some(3), ..FakeShard::default() };
    let server = TestServer::start(shard, &[]).await;
    let chunks = chunks(&server.post("/v1/chat/completions", &chat(&json!({"stream": true, "max_tokens": 50}))).await);
    let error = &chunks.last().unwrap()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("server_error"), &json!("generation")), "{error}");
}

#[tokio::test]
async fn the_model_is_listed() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let mut model = json!({"id": "demo", "object": "model", "created": 0, "owned_by": "demo", "max_model_len": 512});
    let for_anthropic = json!({"type": "model", "display_name": "demo", "created_at": "1970-01-01T00:00:00Z"});
    model.as_object_mut().unwrap().extend(for_anthropic.as_object().unwrap().clone());
    let mut list = json!({"object": "list", "data": [model]});
    let pages = json!({"has_more": false, "first_id": "demo", "last_id": "demo"});
    list.as_object_mut().unwrap().extend(pages.as_object().unwrap().clone());
    assert_eq!(parse(&server.get("/v1/models").await.text), list);
    assert_eq!(parse(&server.get("/v1/models/demo").await.text), model);
    let other = server.get("/v1/models/org/other").await;
    assert_eq!(other.status, StatusCode::NOT_FOUND);
    assert!(parse(&other.text)["error"]["message"].as_str().unwrap().contains("\"org/other\" is not served"));
}

#[tokio::test]
async fn embeddings_are_refused() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let answer = server.post("/v1/embeddings", &json!({"input": "x"})).await;
    assert_eq!(answer.status, StatusCode::NOT_IMPLEMENTED);
    let message = parse(&answer.text)["error"]["message"].as_str().unwrap().to_owned();
    insta::assert_snapshot!(message, @"embeddings are not supported; this server only generates text");
}
