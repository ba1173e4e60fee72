//! Tests of prompts in responses: `echo` of `/v1/completions`, with which evaluation tools read the log-probabilities
//! of a text.
//!
//! For the token at position p of a prompt, the fake shard reports the log-probability −p. It reports the tokens p, p +
//! 10, … as the best ones.

use axum::http::StatusCode;
use model_files::ModelFiles;
use serde_json::{Value, json};

use super::openai::saying;
use crate::testing::{FakeShard, TestServer};
use crate::text::Tokenizer;

const BOS: u32 = 0;

async fn ask(server: &TestServer, changes: Value) -> Value {
    let mut body = json!({"temperature": 0, "echo": true, "logprobs": 1});
    body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    server.post_ok("/v1/completions", &body).await
}

fn list<'a>(choice: &'a Value, name: &str) -> &'a Vec<Value> {
    choice["logprobs"][name].as_array().unwrap()
}

/// Checks that the lists have equal lengths, and that the text contains each token at its offset.
fn check_offsets(choice: &Value) {
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let tokens = list(choice, "tokens");
    for name in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(choice, name).len(), tokens.len(), "{name}: {choice}");
    }
    for (token, offset) in tokens.iter().zip(list(choice, "text_offset")) {
        let token = token.as_str().unwrap();
        let here: String = text.iter().skip(offset.as_u64().unwrap() as usize).take(token.chars().count()).collect();
        assert!(here == token || token == "<|eos|>", "{token:?} at {offset} of {choice}");
    }
}

#[tokio::test]
async fn a_text_is_echoed_without_what_the_tokenizer_adds() {
    let server = TestServer::start(saying("!"), &[]).await;
    for text in ["Once upon", "naïve 漢字 🦜, 42", "a"] {
        let choice = &ask(&server, json!({"prompt": text})).await["choices"][0];
        assert_eq!(choice["text"], format!("{text}!"));
        check_offsets(choice);
        let num_tokens = Tokenizer::load(&ModelFiles::Demo).unwrap().tokenize_bare(text).unwrap().len();
        let tokens = list(choice, "tokens");
        assert_eq!(tokens.len(), num_tokens + 2, "{choice}");
        assert_eq!(tokens[..num_tokens].iter().map(|token| token.as_str().unwrap()).collect::<String>(), text);
        // The tokenizer adds a token at position 0, so the token at index 1 of the text is at position 2.
        let expected = (0..num_tokens).map(|place| if place == 0 { Value::Null } else { json!(-(place as f64 + 1.0)) });
        assert_eq!(list(choice, "token_logprobs")[..num_tokens], expected.collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn token_ids_are_echoed_as_they_are() {
    let server = TestServer::start(saying("!"), &["--max-client-batch-size=2"]).await;
    let tokenizer = Tokenizer::load(&ModelFiles::Demo).unwrap();
    let ids = tokenizer.tokenize_bare("Once upon a time").unwrap();
    let marked: Vec<u32> = [BOS].into_iter().chain(ids.clone()).collect();
    let answer = ask(&server, json!({"prompt": [ids, marked]})).await;
    for (choice, (prompt, text)) in answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .zip([(&ids, "Once upon a time!"), (&marked, "<|bos|>Once upon a time!")])
    {
        assert_eq!(choice["text"], text);
        check_offsets(choice);
        assert_eq!(list(choice, "tokens").len(), prompt.len() + 2);
        let expected = (0..prompt.len()).map(|place| if place == 0 { Value::Null } else { json!(-(place as f64)) });
        assert_eq!(list(choice, "token_logprobs")[..prompt.len()], expected.collect::<Vec<_>>());
    }
    let written = &ask(&server, json!({"prompt": "<|bos|>Once upon a time"})).await["choices"][0];
    assert_eq!(
        (&written["text"], &written["logprobs"]),
        (&answer["choices"][1]["text"], &answer["choices"][1]["logprobs"])
    );
    let single = ask(&server, json!({"prompt": ids, "logprobs": null})).await["choices"][0].clone();
    assert_eq!((&single["text"], &single["logprobs"]), (&json!("Once upon a time!"), &Value::Null));
}

#[tokio::test]
async fn tokens_of_a_prompt_have_candidates() {
    let server = TestServer::start(saying("!"), &[]).await;
    for num_candidates in [0, 1, 3] {
        let ids = [BOS, 1, 2, 300];
        let choice = &ask(&server, json!({"prompt": ids, "logprobs": num_candidates})).await["choices"][0];
        let tops = list(choice, "top_logprobs");
        assert_eq!(tops[0], Value::Null);
        for (position, top) in tops.iter().enumerate().take(ids.len()).skip(1) {
            let top = top.as_object().unwrap();
            // Token p is the best one at position p.
            let is_candidate = ids[position] as usize == position && num_candidates > 0;
            assert_eq!(top.len(), num_candidates + usize::from(!is_candidate), "{position}: {top:?}");
            let best = top.values().map(|logprob| logprob.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max);
            assert_eq!(best, if num_candidates == 0 { -(position as f64) } else { 0.0 });
            assert!(top.contains_key(list(choice, "tokens")[position].as_str().unwrap()), "{choice}");
        }
    }
}

#[tokio::test]
async fn no_token_may_be_wanted() {
    let server = TestServer::start(saying("!"), &[]).await;
    for limit in ["max_tokens", "max_completion_tokens"] {
        let answer = ask(&server, json!({"prompt": "Once upon a time", limit: 0})).await;
        let choice = &answer["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("Once upon a time"), &json!("length")));
        check_offsets(choice);
        assert_eq!(answer["usage"]["completion_tokens"], 0);
        assert_eq!(list(choice, "tokens").last().unwrap(), " time");
    }
    let refused = server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 0})).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", refused.text);
}

#[tokio::test]
async fn candidates_are_limited() {
    for (flag, sentence) in [
        ("--max-top-n-tokens=4", "`top_n_tokens` must be >= 0 and <= 4. Given: 21"),
        ("--max-top-n-tokens=30", "`logprobs` of a prompt must be <= 20. Given: 21"),
    ] {
        let server = TestServer::start(FakeShard::default(), &[flag]).await;
        let body = json!({"prompt": "a", "echo": true, "logprobs": 21});
        let refused = server.post("/v1/completions", &body).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(refused.text.contains(sentence), "{}", refused.text);
    }
}
