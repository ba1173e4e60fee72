//! Tests of `POST /generate` and `POST /` with the demo model: sensible text, details, seeds, stop strings.

use std::collections::HashSet;
use std::path::Path;

use integration_tests::{Client, Server};
use serde_json::{Value, json};

/// Returns the text to which the demo's chat template renders one user message, without the first special token.
fn chat(question: &str) -> String {
    format!("<|user|>{question}<|assistant|>")
}

#[test]
fn the_demo_model_answers() {
    let server = Server::demo().start();
    let client = server.client();
    assert_eq!(client.generate(&chat("What is 3 + 4?"), 30), "3 + 4 is 7.");
    assert_eq!(client.generate(&chat("What is the opposite of hot?"), 30), "The opposite of hot is cold.");

    let story = client.generate("Once upon a time", 300);
    assert!(story.split_whitespace().count() >= 30 && story.ends_with('.'), "no story: {story:?}");
}

#[test]
fn details_say_how_the_text_came_about() {
    let server = Server::demo().start();
    let client = server.client();
    let body = json!({"inputs": "The dog", "parameters":
        {"max_new_tokens": 5, "details": true, "decoder_input_details": true, "top_n_tokens": 2}});
    let response = client.post("/generate", &body);
    assert_eq!(response.status, 200, "{}", response.text);
    let json = response.json();
    let details = &json["details"];
    assert_eq!(details["finish_reason"], "length");
    assert_eq!(details["generated_tokens"], 5);
    assert_eq!(details["seed"], Value::Null);

    let tokens = details["tokens"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(json["generated_text"], text);
    for (token, top) in tokens.iter().zip(details["top_tokens"].as_array().unwrap()) {
        assert_eq!(token["id"], top[0]["id"], "greedy takes the best token");
        assert_eq!(token["logprob"], top[0]["logprob"]);
        assert!(top[0]["logprob"].as_f64().unwrap() >= top[1]["logprob"].as_f64().unwrap());
    }
    let prefill = details["prefill"].as_array().unwrap();
    assert_eq!(prefill[0]["logprob"], Value::Null);
    assert!(prefill[1..].iter().all(|token| token["logprob"].as_f64().unwrap() <= 0.0), "{prefill:?}");
    assert_eq!(response.header("x-prompt-tokens").unwrap(), prefill.len().to_string());
    assert_eq!(response.header("x-generated-tokens"), Some("5"));
    for header in ["x-compute-type", "x-compute-time", "x-total-time", "x-queue-time", "x-inference-time"] {
        assert!(response.header(header).is_some(), "no {header} in {:?}", response.headers);
    }
}

#[test]
fn a_seed_gives_the_same_text_again() {
    let server = Server::demo().start();
    let client = server.client();
    let generate = |seed: u64| {
        let parameters =
            json!({"max_new_tokens": 40, "do_sample": true, "temperature": 1.5, "seed": seed, "details": true});
        let json = client.post("/generate", &json!({"inputs": "Once upon a time", "parameters": parameters})).json();
        assert_eq!(json["details"]["seed"], seed);
        json["generated_text"].as_str().unwrap().to_owned()
    };
    assert_eq!(generate(1), generate(1));
    assert_ne!(generate(1), generate(2));
}

#[test]
fn an_answer_can_go_on_behind_its_end() {
    let server = Server::demo().start();
    let client = server.client();
    let question = chat("What is 3 + 4?");
    let generate = |mut parameters: Value| {
        parameters["max_new_tokens"] = json!(40);
        parameters["details"] = json!(true);
        client.post("/generate", &json!({"inputs": question, "parameters": parameters})).json()["details"].clone()
    };
    let ids = |details: &Value| -> Vec<u64> {
        details["tokens"].as_array().unwrap().iter().map(|token| token["id"].as_u64().unwrap()).collect()
    };
    let usual = generate(json!({}));
    assert_eq!(usual["finish_reason"], "eos_token");
    let usual = ids(&usual);
    let (eos, answer) = usual.split_last().unwrap();

    let ignored = generate(json!({"ignore_eos_token": true}));
    assert_eq!((&ignored["finish_reason"], &ignored["generated_tokens"]), (&json!("length"), &json!(40)));
    assert!(ids(&ignored).starts_with(&usual));

    let held_back = generate(json!({"min_new_tokens": answer.len() + 1}));
    let held_back = ids(&held_back);
    assert!(held_back.starts_with(answer) && held_back.len() > usual.len(), "{held_back:?}, usually {usual:?}");
    assert_ne!(held_back[answer.len()], *eos);
}

#[test]
fn the_compatible_route_answers_with_a_list() {
    let server = Server::mock().start();
    let response = server.client().post("/", &json!({"inputs": "Hello", "parameters": {"max_new_tokens": 3}}));
    assert_eq!(response.status, 200, "{}", response.text);
    let json = response.json();
    let text = json[0]["generated_text"].as_str().unwrap();
    assert!(text.starts_with("Hello"), "return_full_text is the default here: {text:?}");
}

#[test]
fn a_stop_string_ends_the_text_and_is_part_of_it() {
    let server = Server::demo().start();
    let client = server.client();
    let free = client.generate("Once upon a time", 60);
    let stop = free.split_whitespace().nth(5).unwrap();
    let body =
        json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 60, "stop": [stop], "details": true}});
    let json = client.post("/generate", &body).json();
    let text = json["generated_text"].as_str().unwrap();
    assert!(free.starts_with(text) && text.ends_with(stop) && text.len() < free.len(), "{text:?} of {free:?}");
    assert_eq!(json["details"]["finish_reason"], "stop_sequence");
}

#[test]
fn best_of_gives_the_likelier_of_several() {
    let server = Server::demo().start();
    let parameters = json!({"max_new_tokens": 20, "best_of": 2, "do_sample": true, "details": true});
    let response = server.client().post("/generate", &json!({"inputs": "The cat", "parameters": parameters}));
    assert_eq!(response.status, 200, "{}", response.text);
    let details = &response.json()["details"];
    let mean = |sequence: &Value| {
        let tokens = sequence["tokens"].as_array().unwrap();
        tokens.iter().map(|token| token["logprob"].as_f64().unwrap()).sum::<f64>() / tokens.len() as f64
    };
    let others = details["best_of_sequences"].as_array().unwrap();
    assert_eq!(others.len(), 1);
    assert!(mean(details) >= mean(&others[0]));
}

/// Returns the ids of the tokens that a server generates for a fixed prompt.
fn token_ids(client: &Client, parameters: &Value) -> Vec<u64> {
    let response = client.post("/generate", &json!({"inputs": "Once upon a time", "parameters": parameters}));
    assert_eq!(response.status, 200, "{}", response.text);
    let json = response.json();
    let tokens = json["details"]["tokens"].as_array().expect("details list tokens");
    tokens.iter().map(|token| token["id"].as_u64().expect("an id is a number")).collect()
}

#[test]
fn biases_raise_and_forbid_tokens() {
    let server = Server::demo().start();
    let client = server.client();
    let biased = |logit_bias: Value| {
        token_ids(&client, &json!({"max_new_tokens": 6, "details": true, "logit_bias": logit_bias}))
    };
    let free = biased(json!({}));
    let [first, second] = [free[0].to_string(), free[1].to_string()];
    assert_eq!(biased(json!({second.as_str(): 100})), [free[1]; 6]);
    assert!(!biased(json!({first.as_str(): -100})).contains(&free[0]));
    let parameters = json!({"max_new_tokens": 1, "logit_bias": {"1000000": 1}});
    let response = client.post("/generate", &json!({"inputs": "x", "parameters": parameters}));
    assert_eq!(response.status, 422);
    assert!(response.text.contains("logit_bias") && response.text.contains("1000000"), "{}", response.text);
}

#[test]
fn a_watermark_parts_the_tokens_that_may_follow_each_other() {
    // A delta of 100 is larger than any difference of scores, so only green tokens can follow each token; with a delta
    // of -100 only others can.
    let pairs = |delta: &str, watermark: bool| {
        let server = Server::demo().flag("--watermark-delta", delta).start();
        let client = server.client();
        let pairs = (0..12).flat_map(|seed| {
            let parameters = json!({"max_new_tokens": 60, "details": true, "do_sample": true, "seed": seed,
                "watermark": watermark, "ignore_eos_token": true});
            let ids = token_ids(&client, &parameters);
            ids.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>()
        });
        pairs.collect::<HashSet<_>>()
    };
    let (green, red, free) = (pairs("100", true), pairs("-100", true), pairs("2", false));
    assert!(green.len() > 100 && red.len() > 100, "{} and {} pairs", green.len(), red.len());
    assert_eq!(green.intersection(&red).count(), 0);
    assert!(free.intersection(&green).next().is_some() && free.intersection(&red).next().is_some());
}

#[test]
fn a_gguf_file_is_served() {
    let folder = checkpoints::folder("gguf/llama-k");
    let text = |model_id: &Path| {
        let server = Server::model(&model_id.display().to_string()).flag("--max-total-tokens", 64).start();
        server.client().generate("the little dog", 20)
    };
    let of_file = text(&folder.join("model.gguf"));
    assert!(!of_file.is_empty());
    assert_eq!(text(&folder), of_file, "the only file of a folder");
}
