//! Tests of a sequence whose numbers are not finite: its request fails, and no other request is affected, with one
//! shard and with two.
//!
//! The model is the demo model, except that the embedding of one token becomes infinite when the model multiplies it.

use std::path::Path;

use integration_tests::{Client, Server};
use serde_json::{Value, json};
use test_support::join_scoped;

use super::concurrency::wait_idle;

/// The token whose embedding becomes infinite.
const BAD: usize = 1535;
const REASON: &str = "the model computed values that are not finite for this sequence";

/// Writes the model. The output head keeps the original embeddings. The input embeddings are doubled when they are
/// used, which makes the bad token's embedding infinite.
fn write_model(directory: &Path) {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo");
    for file in ["generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(demo.join(file), directory.join(file)).expect("the demo is there");
    }
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(demo.join("config.json")).expect("the demo is there"))
            .expect("config.json is JSON");
    config["architectures"] = json!(["GraniteForCausalLM"]);
    config["tie_word_embeddings"] = false.into();
    config["embedding_multiplier"] = 2.0.into();
    config["attention_multiplier"] = (1.0 / 32.0_f64.sqrt()).into();
    std::fs::write(directory.join("config.json"), config.to_string()).expect("the folder can be written");

    let file = std::fs::read(demo.join("model.safetensors")).expect("the demo is there");
    let header_len = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let mut header: Value = serde_json::from_slice(&file[8..8 + header_len]).expect("the head is JSON");
    let mut data = file[8 + header_len..].to_vec();
    let embeddings = header["model.embed_tokens.weight"].clone();
    let [start, end]: [usize; 2] = serde_json::from_value(embeddings["data_offsets"].clone()).expect("two offsets");
    let table = data[start..end].to_vec();
    let mut head = embeddings;
    head["data_offsets"] = json!([data.len(), data.len() + table.len()]);
    header["lm_head.weight"] = head;
    // The bad token's embedding gets the largest finite bf16 number everywhere.
    let row_bytes = table.len() / 1536;
    data[start + BAD * row_bytes..][..row_bytes].copy_from_slice(&[0x7f, 0x7f].repeat(row_bytes / 2));
    data.extend(table);
    let header = header.to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    std::fs::write(directory.join("model.safetensors"), bytes).expect("the folder can be written");
}

/// Returns a prompt with or without the bad token. Both prompts have the same first blocks.
fn prompt(has_bad: bool) -> Vec<usize> {
    let mut prompt: Vec<usize> = (0..40).map(|i| 100 + 7 * i).collect();
    if has_bad {
        prompt[35] = BAD;
    }
    prompt
}

fn body(has_bad: bool, is_stream: bool) -> Value {
    json!({"prompt": prompt(has_bad), "max_tokens": 40, "temperature": 0, "stream": is_stream})
}

fn check_refused(client: &Client) {
    let response = client.post("/v1/completions", &body(true, false));
    assert_eq!(response.status, 424, "{}", response.text);
    let error = &response.json()["error"];
    assert!(
        error["message"].as_str().expect("a sentence").contains(REASON) && error["code"] == "generation",
        "{error}"
    );
    let (status, lines) = client.open("/v1/completions", &body(true, true)).expect("the server answers");
    let lines: Vec<String> =
        lines.map(|line| line.expect("the stream ends whole")).filter(|line| line.contains(REASON)).collect();
    assert_eq!((status, lines.len()), (200, 1), "{lines:?}");
}

fn answer(client: &Client) -> Value {
    let response = client.post("/v1/completions", &body(false, false));
    assert_eq!(response.status, 200, "{}", response.text);
    response.json()["choices"].clone()
}

#[test]
fn a_sequence_that_is_not_finite_fails_alone() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path());
    for num_shard in [1, 2] {
        let server = Server::builder(directory.path().to_str().unwrap(), "cpu").flag("--num-shard", num_shard).start();
        let client = server.client();
        let alone = answer(&client);
        std::thread::scope(|scope| {
            let others: Vec<_> =
                (0..3).map(|_| scope.spawn(|| (0..3).map(|_| answer(&client)).collect::<Vec<_>>())).collect();
            let failing: Vec<_> = (0..3).map(|_| scope.spawn(|| (0..3).for_each(|_| check_refused(&client)))).collect();
            failing.into_iter().for_each(|client| join_scoped(client, "a request that fails"));
            let answers = others.into_iter().flat_map(|client| join_scoped(client, "a response"));
            answers.for_each(|answer| assert_eq!(answer, alone, "{num_shard} shards"));
        });
        assert_eq!(answer(&client), alone, "{num_shard} shards, afterwards");
        wait_idle(&client);
        assert_eq!(client.metrics().value("hilo_row_failures_total"), 18.0);
        assert_eq!(server.stop().status.code(), Some(0));
    }
}
