//! Tests of a model all of whose layers have an attention window: sequences that are longer than the KV cache run, and
//! give the same text as with a large cache.
//!
//! The model is the demo model with a window, declared in the form of Mistral's configuration.

use std::path::Path;

use integration_tests::{Client, Server};
use serde_json::{Value, json};
use test_support::join_scoped;

use super::concurrency::wait_idle;

const WINDOW: u32 = 40;

fn write_model(directory: &Path) {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo");
    for file in ["generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(demo.join(file), directory.join(file)).expect("the demo is there");
    }
    let config = std::fs::read(demo.join("config.json")).expect("the demo is there");
    let mut config: Value = serde_json::from_slice(&config).expect("config.json is JSON");
    config["architectures"] = json!(["MistralForCausalLM"]);
    config["model_type"] = "mistral".into();
    config["sliding_window"] = WINDOW.into();
    std::fs::write(directory.join("config.json"), config.to_string()).expect("the folder can be written");
}

fn start(directory: &Path, max_batch_total_tokens: u32) -> Server {
    Server::model(directory.to_str().expect("the path is text"))
        .flag("--max-total-tokens", 512)
        .flag("--max-batch-size", 4)
        .flag("--max-batch-prefill-tokens", 64)
        .flag("--max-batch-total-tokens", max_batch_total_tokens)
        .start()
}

/// Returns 200 generated tokens after a prompt of more than 100 words.
fn answer(client: &Client, number: usize) -> String {
    let inputs = format!("Story {number}. {}", "Tom and Lily are in the garden. They see a big red ball. ".repeat(8));
    let parameters = json!({"max_new_tokens": 200, "ignore_eos_token": true, "seed": number, "temperature": 1.1});
    let response = client.post("/generate", &json!({"inputs": inputs, "parameters": parameters}));
    assert_eq!(response.status, 200, "{}", response.text);
    response.json()["generated_text"].as_str().expect("a text").to_owned()
}

#[test]
fn sequences_longer_than_the_kv_cache_run() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    write_model(directory.path());
    let large = start(directory.path(), 4 * 512);
    let expected: Vec<String> = (0..4).map(|number| answer(&large.client(), number)).collect();
    drop(large);
    let small = start(directory.path(), 128);
    let client = &small.client();
    assert_eq!(answer(client, 0), expected[0]);
    assert_eq!(client.metrics().value("vllm:num_preemptions_total"), 0.0);
    let answers: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|number| scope.spawn(move || answer(client, number))).collect();
        threads.into_iter().map(|thread| join_scoped(thread, "a response")).collect()
    });
    assert_eq!(answers, expected);
    wait_idle(client);
}
