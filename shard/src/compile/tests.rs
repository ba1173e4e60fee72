//! Programs of ranks that must pad and copy, compiled for TPU slices. The tests need libtpu, but no TPU.
//!
//! The tests check the number of collectives. Decoders have at most two sums per layer, one sum for the embedding and
//! one more collective; samplers have at most two.

use std::path::Path;

use devices::plugins::testing::with_libtpu;
use xla::ProgramCost;

use super::*;

const NUM_LAYERS: u64 = 2;

/// Writes a model with 4 KV heads, and with sizes of vocabulary and features that the chips do not divide evenly.
fn write_config(directory: &Path) {
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "hidden_size": 1024, "vocab_size": 32_003,
        "intermediate_size": 2_750, "num_hidden_layers": NUM_LAYERS, "num_attention_heads": 8, "num_key_value_heads": 4,
        "max_position_embeddings": 512, "tie_word_embeddings": true,
    });
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
}

fn costs(topology: &str, plugin_path: &Path) -> Vec<(String, ProgramCost)> {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path());
    let plan = Plan::new(&PlanArgs {
        model_id: directory.path().to_str().unwrap().to_owned(),
        dtype: None,
        quantize: None,
        topology: topology.to_owned(),
        num_shard: None,
        devices_per_shard: 1,
        plugin_path: Some(plugin_path.to_path_buf()),
        max_total_tokens: Some(512),
        max_batch_prefill_tokens: Some(512),
        max_batch_total_tokens: Some(4096),
        max_batch_size: Some(8),
    })
    .unwrap();
    let names = ["decode_8", "sample_8_everything", "prefill_1x512"].map(str::to_owned);
    let figures = plan.compile(None, &names, &mut |_, _, _| ()).unwrap();
    assert_eq!(figures.len(), names.len(), "all programs are there");
    figures.into_iter().map(|figures| (figures.name, figures.cost.unwrap())).collect()
}

fn check(test: &str, topology: &str) {
    with_libtpu(module_path!(), test, |plugin_path| {
        for (name, cost) in costs(topology, plugin_path) {
            let collectives = cost.collectives;
            println!("{topology} {name}: {collectives:?}");
            let most = if name.starts_with("sample") { 2 } else { 2 * NUM_LAYERS + 2 };
            assert!((1..=most).contains(&collectives.total()), "{topology} {name}: {collectives:?}");
        }
    });
}

#[test]
fn four_chips_of_v5e() {
    check("four_chips_of_v5e", "v5e:2x2");
}

#[test]
fn eight_chips_of_v5e() {
    check("eight_chips_of_v5e", "v5e:2x4");
}

#[test]
fn eight_chips_of_v6e() {
    check("eight_chips_of_v6e", "v6e:2x4");
}
