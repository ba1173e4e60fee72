//! Tests of `POST /generate_stream`: the events have TGI's form, and their text is the text of `/generate`.

use integration_tests::Server;
use serde_json::{Value, json};

#[test]
fn a_stream_says_what_generate_says() {
    let server = Server::demo().start();
    let client = server.client();
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 40, "details": true}});
    let stream = client.stream("/generate_stream", &body).unwrap();
    assert_eq!(stream.status, 200);
    let events: Vec<Value> = stream.collect();

    let (last, others) = events.split_last().unwrap();
    assert!(others.iter().all(|event| event["generated_text"].is_null() && event["details"].is_null()));
    let indices: Vec<u64> = events.iter().map(|event| event["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, (1..=events.len() as u64).collect::<Vec<_>>());

    let response = client.post("/generate", &body);
    assert_eq!(response.status, 200, "{}", response.text);
    let whole = response.json();
    assert_eq!(last["generated_text"], whole["generated_text"]);
    assert_eq!(last["details"]["generated_tokens"], events.len() as u64);
    assert_eq!(last["details"]["finish_reason"], whole["details"]["finish_reason"]);
    let tokens: Vec<&Value> = events.iter().map(|event| &event["token"]).collect();
    assert_eq!(json!(tokens), whole["details"]["tokens"]);
}

#[test]
fn the_end_of_sequence_token_is_special_and_not_in_the_text() {
    let server = Server::demo().start();
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 400}});
    let last = server.client().stream("/generate_stream", &body).unwrap().last().unwrap();
    assert_eq!(last["token"]["special"], true, "{last}");
    let eos = last["token"]["text"].as_str().unwrap();
    assert!(!last["generated_text"].as_str().unwrap().contains(eos));
}

#[test]
fn streamed_text_is_whole_characters() {
    let server = Server::mock().start();
    let body = json!({"inputs": "naïve 🦀 été", "parameters": {"max_new_tokens": 400}});
    let events: Vec<Value> = server.client().stream("/generate_stream", &body).unwrap().collect();
    let text: String = events.iter().map(|event| event["token"]["text"].as_str().unwrap()).collect();
    assert_eq!(events.last().unwrap()["generated_text"], text);
}

#[test]
fn a_bad_streaming_request_gets_a_real_status() {
    let server = Server::mock().start();
    let client = server.client();
    let body = json!({"inputs": "", "parameters": {}});
    let response = client.post("/generate_stream", &body);
    assert_eq!(response.status, 422);
    assert_eq!(response.error(), ("Input validation error: `inputs` cannot be empty".into(), "validation".into()));
}
