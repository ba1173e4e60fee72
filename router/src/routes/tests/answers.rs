//! Tests of successful generations: the shapes of responses, texts, details, and several requests at once.
//!
//! The tests compute which tokens the fake shard must generate, so a response that mixes up rows is noticed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::{StatusCode, header};
use futures_util::future::join_all;
use model_files::ModelFiles;
use serde_json::{Value, json};

use crate::testing::{FakeShard, TestServer, hash_of_tokens};
use crate::text::Tokenizer;

/// Returns the tokens that the fake shard generates for a prompt.
fn expected_tokens(inputs: &str, num_tokens: usize) -> Vec<u32> {
    let tokenizer = Tokenizer::load(&ModelFiles::Demo).unwrap();
    let mut tokens = tokenizer.tokenize(inputs).unwrap();
    let num_prompt_tokens = tokens.len();
    for _ in 0..num_tokens {
        let next = hash_of_tokens(&tokens, &proto::SamplingParams::greedy());
        tokens.push(next);
    }
    tokens.split_off(num_prompt_tokens)
}

/// Returns a fake shard that generates `text` after the prompt `inputs`, then ends the sequence.
fn saying(text: &str, inputs: &str) -> FakeShard {
    let tokenizer = Tokenizer::load(&ModelFiles::Demo).unwrap();
    let mut script = tokenizer.tokenize(text).unwrap().split_off(1);
    script.push(1);
    let num_prompt_tokens = tokenizer.tokenize(inputs).unwrap().len();
    let next_token = Arc::new(move |tokens: &[u32], _: &_| script[(tokens.len() - num_prompt_tokens) % script.len()]);
    FakeShard { next_token, ..FakeShard::default() }
}

fn ids(tokens: &Value) -> Vec<u32> {
    tokens.as_array().unwrap().iter().map(|token| token["id"].as_u64().unwrap() as u32).collect()
}

#[tokio::test]
async fn generate_has_the_shape_of_tgi() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let body = json!({"inputs": "Once upon", "parameters": {"max_new_tokens": 3, "details": true}});
    let answer = server.post("/generate", &body).await;
    assert_eq!(answer.status, StatusCode::OK);
    for (name, value) in [("x-compute-type", "1-cpu"), ("x-compute-characters", "9"), ("x-generated-tokens", "3")] {
        assert_eq!(answer.headers[name], value);
    }
    for name in [
        "x-compute-time",
        "x-total-time",
        "x-validation-time",
        "x-queue-time",
        "x-inference-time",
        "x-time-per-token",
        "x-prompt-tokens",
        "x-request-id",
    ] {
        assert!(answer.headers.contains_key(name), "{name}");
    }
    let response: Value = crate::testing::json(&answer.text);
    let details = &response["details"];
    let expected = json!(["finish_reason", "generated_tokens", "seed", "prefill", "tokens"]);
    let keys: Vec<_> = details.as_object().unwrap().keys().collect();
    assert_eq!(json!(keys.iter().collect::<std::collections::BTreeSet<_>>()), {
        let mut sorted: Vec<String> = serde_json::from_value(expected).unwrap();
        sorted.sort();
        json!(sorted)
    });
    assert_eq!((&details["finish_reason"], &details["generated_tokens"]), (&json!("length"), &json!(3)));
    assert_eq!((&details["seed"], &details["prefill"]), (&Value::Null, &json!([])));
    assert_eq!(ids(&details["tokens"]), expected_tokens("Once upon", 3));
    let text: String =
        details["tokens"].as_array().unwrap().iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(response["generated_text"], text);
}

#[tokio::test]
async fn the_model_says_how_tokens_are_chosen_only_where_it_is_asked() {
    for (flags, seeds) in [(&[][..], [false, true, false]), (&["--generation-config=model"], [true, true, false])] {
        let server = TestServer::start(FakeShard::default(), flags).await;
        for (choice, has_seed) in
            [json!({}), json!({"temperature": 0.9}), json!({"do_sample": false})].into_iter().zip(seeds)
        {
            let mut parameters = json!({"max_new_tokens": 2, "details": true});
            parameters.as_object_mut().unwrap().extend(choice.as_object().unwrap().clone());
            let answer = server.post_ok("/generate", &json!({"inputs": "a", "parameters": parameters})).await;
            assert_eq!(answer["details"]["seed"].is_u64(), has_seed, "{flags:?} {choice}");
        }
    }
}

#[tokio::test]
async fn details_are_absent_unless_asked_for() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let response = server.post_ok("/generate", &json!({"inputs": "a", "parameters": {"max_new_tokens": 1}})).await;
    assert_eq!(response.as_object().unwrap().len(), 1);
}

#[tokio::test]
async fn prompt_details_and_top_tokens_come_when_asked_for() {
    let server = TestServer::start(FakeShard::default(), &["--max-batch-prefill-tokens=2"]).await;
    let parameters = json!({"max_new_tokens": 2, "decoder_input_details": true, "top_n_tokens": 2});
    let response = server.post_ok("/generate", &json!({"inputs": "1234", "parameters": parameters})).await;
    let prefill = response["details"]["prefill"].as_array().unwrap();
    let logprobs: Vec<_> = prefill.iter().map(|token| token["logprob"].clone()).collect();
    assert_eq!(json!(logprobs), json!([null, -1.0, -2.0, -3.0, -4.0]));
    let text: String = prefill[1..].iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(text, "1234");
    let top_tokens = response["details"]["top_tokens"].as_array().unwrap();
    assert_eq!((top_tokens.len(), top_tokens[0].as_array().unwrap().len()), (2, 2));
    assert_eq!(top_tokens[1][0]["id"], response["details"]["tokens"][1]["id"]);
}

#[tokio::test]
async fn a_stream_ends_with_token_and_summary_in_one_event() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let body = json!({"inputs": "Once", "parameters": {"max_new_tokens": 4, "details": true, "top_n_tokens": 1}});
    let events = server.post_stream("/generate_stream", &body).await;
    assert_eq!(events.iter().map(|event| event["index"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let (last, others) = events.split_last().unwrap();
    for event in others {
        assert_eq!((&event["generated_text"], &event["details"]), (&Value::Null, &Value::Null));
        assert_eq!(event["top_tokens"].as_array().unwrap().len(), 1);
    }
    let text: String = events.iter().map(|event| event["token"]["text"].as_str().unwrap()).collect();
    assert_eq!(last["generated_text"], text);
    let input_length = Tokenizer::load(&ModelFiles::Demo).unwrap().tokenize("Once").unwrap().len();
    let expected =
        json!({"finish_reason": "length", "generated_tokens": 4, "seed": null, "input_length": input_length});
    assert_eq!(last["details"], expected);
    let whole = server.post_ok("/generate", &body).await;
    assert_eq!(whole["generated_text"], text);
}

#[tokio::test]
async fn streams_have_their_headers_and_no_details_unasked() {
    let server = TestServer::start(FakeShard::default(), &["--compute-type=4-tpu"]).await;
    let body = json!({"inputs": "Once", "parameters": {"max_new_tokens": 1}});
    let answer = server.post("/generate_stream", &body).await;
    assert_eq!(answer.headers[header::CONTENT_TYPE], "text/event-stream");
    assert_eq!(answer.headers[header::CACHE_CONTROL], "no-cache");
    assert_eq!(
        (&answer.headers["x-accel-buffering"], &answer.headers["x-compute-type"]),
        (&"no".parse().unwrap(), &"4-tpu".parse().unwrap())
    );
    let event = &answer.events()[0];
    assert_eq!(event["details"], Value::Null);
    assert!(event.get("top_tokens").is_none() && event["generated_text"].is_string());
}

#[tokio::test]
async fn the_compatible_route_answers_with_a_list_or_a_stream_and_the_prompt() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let list = server.post_ok("/", &json!({"inputs": "Once", "parameters": {"max_new_tokens": 2}})).await;
    assert!(list[0]["generated_text"].as_str().unwrap().starts_with("Once") && list.as_array().unwrap().len() == 1);
    let parameters = json!({"max_new_tokens": 2, "return_full_text": false});
    let bare = server.post_ok("/", &json!({"inputs": "Once", "parameters": parameters, "stream": null})).await;
    let full_text = list[0]["generated_text"].as_str().unwrap();
    assert_eq!(full_text, format!("Once{}", bare[0]["generated_text"].as_str().unwrap()));
    let events =
        server.post_stream("/", &json!({"inputs": "Once", "parameters": {"max_new_tokens": 2}, "stream": true})).await;
    assert_eq!(events[1]["generated_text"], full_text);
}

#[tokio::test]
async fn without_parameters_a_request_samples() {
    let server = TestServer::start(FakeShard::default(), &["--max-total-tokens=8"]).await;
    let seed_of = async |body: Value| {
        server.post_stream("/generate_stream", &body).await.pop().unwrap()["details"]["seed"].clone()
    };
    let details = json!({"max_new_tokens": 1, "details": true});
    assert_eq!(seed_of(json!({"inputs": "a", "parameters": details})).await, Value::Null);
    let mut sampled = details.clone();
    sampled["do_sample"] = json!(true);
    assert!(seed_of(json!({"inputs": "a", "parameters": sampled})).await.is_u64());
    sampled["seed"] = json!(5);
    assert_eq!(seed_of(json!({"inputs": "a", "parameters": sampled})).await, json!(5));
    let texts = join_all((0..4).map(async |_| server.post_ok("/generate", &json!({"inputs": "a"})).await)).await;
    assert!(texts.iter().any(|text| text != &texts[0]), "{texts:?}");
}

#[tokio::test]
async fn max_new_tokens_is_exact_and_defaults_to_the_rest() {
    let server = TestServer::start(FakeShard::default(), &["--max-total-tokens=100"]).await;
    let parameters = json!({"details": true});
    let response = server.post_ok("/generate", &json!({"inputs": "777", "parameters": parameters})).await;
    assert_eq!(response["details"]["generated_tokens"], 96);
    let parameters = json!({"details": true, "max_new_tokens": 97});
    let answer = server.post("/generate", &json!({"inputs": "777", "parameters": parameters})).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn the_end_of_sequence_is_a_token_but_no_text() {
    let server = TestServer::start(saying(" there was", "Once"), &[]).await;
    let body = json!({"inputs": "Once", "parameters": {"max_new_tokens": 50, "details": true}});
    let events = server.post_stream("/generate_stream", &body).await;
    let last = events.last().unwrap();
    assert_eq!(last["token"]["text"], "<|eos|>");
    assert_eq!((&last["token"]["special"], &last["generated_text"]), (&json!(true), &json!(" there was")));
    assert_eq!(last["details"]["finish_reason"], "eos_token");
}

#[tokio::test]
async fn a_request_can_ignore_the_end_of_sequence() {
    let server = TestServer::start(saying(" there was", "Once"), &[]).await;
    let parameters = json!({"max_new_tokens": 20, "details": true, "ignore_eos_token": true});
    let response = server.post_ok("/generate", &json!({"inputs": "Once", "parameters": parameters})).await;
    let details = &response["details"];
    assert_eq!((&details["finish_reason"], &details["generated_tokens"]), (&json!("length"), &json!(20)));
    let is_eos = |token: &&serde_json::Value| token["text"] == "<|eos|>";
    assert!(details["tokens"].as_array().unwrap().iter().filter(is_eos).count() >= 1, "{details}");
    assert!(!response["generated_text"].as_str().unwrap().contains("<|eos|>"));
}

#[tokio::test]
async fn a_stop_string_ends_the_text_and_stays_in_it() {
    let server = TestServer::start(saying(" there was a princess.", "Once"), &[]).await;
    for (stop, expected) in
        [(json!(["was"]), " there was"), (json!("prin"), " there was a prin"), (json!(["zzz", " a"]), " there was a")]
    {
        let parameters = json!({"max_new_tokens": 50, "details": true, "stop": stop});
        let response = server.post_ok("/generate", &json!({"inputs": "Once", "parameters": parameters})).await;
        assert_eq!(
            (&response["generated_text"], &response["details"]["finish_reason"]),
            (&json!(expected), &json!("stop_sequence"))
        );
    }
    server.wait_for_metric("hilo_slots_used 0").await;
}

#[tokio::test]
async fn best_of_returns_the_likeliest_first() {
    let server = TestServer::start(FakeShard::default(), &[]).await;
    let parameters = json!({"max_new_tokens": 5, "best_of": 2, "do_sample": true, "details": true});
    let response = server.post_ok("/generate", &json!({"inputs": "Once", "parameters": parameters})).await;
    let others = response["details"]["best_of_sequences"].as_array().unwrap();
    assert_eq!(others.len(), 1);
    let score =
        |tokens: &Value| tokens.as_array().unwrap().iter().map(|token| token["logprob"].as_f64().unwrap()).sum::<f64>();
    assert!(score(&response["details"]["tokens"]) >= score(&others[0]["tokens"]));
    assert_ne!(response["details"]["seed"], others[0]["seed"]);
    assert!(others[0]["generated_text"].is_string() && others[0]["prefill"].is_array());
}

#[tokio::test]
async fn many_at_once_answer_as_each_alone() {
    let shard = FakeShard { num_blocks: 24, ..FakeShard::default() };
    let stats = Arc::clone(&shard.stats);
    let server = TestServer::start(shard, &["--max-batch-prefill-tokens=7", "--max-total-tokens=100"]).await;
    let prompts: Vec<String> =
        (0..40).map(|n| format!("Tell me about the number {n} {}", "and more ".repeat(n % 5))).collect();
    let answers = join_all(prompts.iter().map(async |prompt| {
        let parameters = json!({"max_new_tokens": 5 + prompt.len() % 20, "details": true});
        server.post_ok("/generate", &json!({"inputs": prompt, "parameters": parameters})).await
    }));
    for (prompt, answer) in prompts.iter().zip(answers.await) {
        assert_eq!(ids(&answer["details"]["tokens"]), expected_tokens(prompt, 5 + prompt.len() % 20), "{prompt}");
    }
    assert!(stats.max_rows.load(Ordering::Relaxed) > 1, "nothing was batched");
    for line in ["hilo_slots_used 0", "hilo_kv_blocks_used 0", "tgi_queue_size 0", "tgi_request_success 40"] {
        server.wait_for_metric(line).await;
    }
}

#[tokio::test]
async fn idle_time_of_the_device_is_counted_between_steps_of_rows_only() {
    let server = TestServer::start(FakeShard::default(), &["--step-window=1"]).await;
    server.post_ok("/generate", &json!({"inputs": "Once", "parameters": {"max_new_tokens": 5}})).await;
    // The fake shard reports 2 µs of idle time for each step. The prefill generates the first of five tokens, so four
    // steps count.
    for line in [
        "tgi_batch_inference_count{method=\"prefill\"} 1",
        "hilo_device_idle_duration_count 4",
        "hilo_device_idle_duration_sum 0.000008",
        "hilo_device_idle_duration_bucket{le=\"0.0000015\"} 0",
    ] {
        server.wait_for_metric(line).await;
    }
}
