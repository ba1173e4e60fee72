//! Programs compiled for TPU slices. The tests need libtpu, but no TPU.
//!
//! Some tests compile the programs of ranks that must pad and copy, and check the number of collectives. Decoders have
//! at most two sums per layer, one sum for the embedding and one more collective; samplers have at most two. Other
//! tests compile decoders of known models, with the decode kernel or the loop, and check that these read little more
//! than they must.

use std::path::Path;

use devices::DecodeAttention;
use devices::plugins::testing::with_libtpu;
use xla::ProgramCost;

use super::*;

const NUM_LAYERS: u64 = 2;

/// Returns a model with 4 KV heads, and with sizes of vocabulary and features that the chips do not divide evenly.
fn uneven() -> serde_json::Value {
    serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "hidden_size": 1024, "vocab_size": 32_003,
        "intermediate_size": 2_750, "num_hidden_layers": NUM_LAYERS, "num_attention_heads": 8, "num_key_value_heads": 4,
        "max_position_embeddings": 512, "tie_word_embeddings": true,
    })
}

/// A model, and the limits of the programs that are compiled for it.
#[derive(Debug, Clone, Copy)]
struct Model<'a> {
    config: &'a serde_json::Value,
    attention: DecodeAttention,
    rows: u32,
    tokens_per_row: u32,
}

/// Returns the costs of the programs called `names`.
fn costs(topology: &str, plugin_path: &Path, model: Model<'_>, names: &[&str]) -> Vec<(String, ProgramCost)> {
    let Model { config, attention, rows, tokens_per_row } = model;
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let plan = Plan::new(&PlanArgs {
        model_id: directory.path().to_str().unwrap().to_owned(),
        dtype: None,
        quantize: None,
        attention,
        topology: topology.to_owned(),
        num_shard: None,
        devices_per_shard: 1,
        plugin_path: Some(plugin_path.to_path_buf()),
        max_total_tokens: Some(tokens_per_row),
        max_batch_prefill_tokens: Some(tokens_per_row),
        max_batch_total_tokens: Some(rows * tokens_per_row),
        max_batch_size: Some(rows),
    })
    .unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let figures = plan.compile(None, &names, &mut |_, _, _| ()).unwrap();
    assert_eq!(figures.len(), names.len(), "all programs are there");
    figures.into_iter().map(|figures| (figures.name, figures.cost.unwrap())).collect()
}

#[test]
fn an_unknown_program_is_named_with_those_of_its_kind() {
    let known = ["prefill_1x16", "decode_1", "decode_2", "sample_1"];
    let check = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        check_names(&names, &known).map_err(|error| error.to_string())
    };
    assert_eq!((check(&[]), check(&["decode_2", "sample_1"])), (Ok(()), Ok(())));
    let expected = "there is no program decode_3; among the 4 programs of this model are decode_1, decode_2, \
                    prefill_1x16, sample_1";
    assert_eq!(check(&["decode_2", "decode_3"]), Err(expected.to_owned()));
}

fn check(test: &str, topology: &str) {
    with_libtpu(module_path!(), test, |plugin_path| {
        let attention = DecodeAttention::Loop;
        let model = Model { config: &uneven(), attention, rows: 8, tokens_per_row: 512 };
        for (name, cost) in costs(topology, plugin_path, model, &["decode_8", "sample_8_everything", "prefill_1x512"]) {
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

/// Compiles the decoder of a model of two layers with the decode kernel. The caches must stay in place, which compiling
/// checks too, and no part of them may be read twice or copied to scratch memory.
fn check_kernel(test: &str, config: &serde_json::Value, topologies: &[&str]) {
    with_libtpu(module_path!(), test, |plugin_path| {
        for topology in topologies {
            let model = Model { config, attention: DecodeAttention::Mosaic, rows: 64, tokens_per_row: 2048 };
            let (_, cost) = costs(topology, plugin_path, model, &["decode_64"]).remove(0);
            println!("{topology}: {cost:?}");
            let ratio = cost.read_bytes as f64 / cost.minimum_bytes as f64;
            assert!((1.0..1.1).contains(&ratio), "{topology}: {ratio} times the least");
            assert!(cost.temp_bytes < 8 << 20, "{topology}: {cost:?}");
        }
    });
}

/// A model of the sizes of Llama. The vocabulary is small, because the minimum that a decoder must read does not
/// contain the table of embeddings.
fn llama([hidden, intermediate, heads, kv_heads]: [usize; 4]) -> serde_json::Value {
    serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "hidden_size": hidden, "vocab_size": 2048,
        "intermediate_size": intermediate, "num_hidden_layers": NUM_LAYERS, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "max_position_embeddings": 2048, "tie_word_embeddings": true,
    })
}

#[test]
fn the_kernel_in_llama_1b() {
    let config = llama([2048, 8192, 32, 8]);
    check_kernel("the_kernel_in_llama_1b", &config, &["v5e:1x1", "v6e:1x1"]);
}

#[test]
fn the_kernel_in_llama_8b_over_8() {
    let config = llama([4096, 14336, 32, 8]);
    let topologies = ["v4:2x2x2", "v5e:2x4", "v5p:2x2x1", "v6e:2x4", "tpu7x:2x2x1"];
    check_kernel("the_kernel_in_llama_8b_over_8", &config, &topologies);
}

/// Compiles the decoders called `names` of a model of two layers with the loop. For rows of equal lengths and of
/// different lengths, they must read less than `most` times the least. Their scratch memory must be less than
/// `most_scratch` bytes.
fn check_loop(
    (test, topology): (&str, &str),
    config: &serde_json::Value,
    names: &[&str],
    (most, most_scratch): (f64, u64),
) {
    with_libtpu(module_path!(), test, |plugin_path| {
        let mut config = config.clone();
        config["max_position_embeddings"] = 4096.into();
        let model = Model { config: &config, attention: DecodeAttention::Loop, rows: 64, tokens_per_row: 4096 };
        for (name, cost) in costs(topology, plugin_path, model, names) {
            println!("{topology} {name}: {cost:?}");
            for [read, minimum] in [[cost.read_bytes, cost.minimum_bytes], cost.mixed_bytes.unwrap()] {
                let ratio = read as f64 / minimum as f64;
                assert!((1.0..most).contains(&ratio), "{topology} {name}: {ratio} times the least");
            }
            assert!(cost.temp_bytes < most_scratch, "{topology} {name}: {cost:?}");
        }
    });
}

/// If all iterations took the same number of chunks, rows of different lengths would read 1.19 times the least.
#[test]
fn the_loop_in_smollm_135m() {
    let config = llama([576, 1536, 9, 3]);
    check_loop(("the_loop_in_smollm_135m", "v6e:1x1"), &config, &["decode_64"], (1.1, 32 << 20));
}

/// If a `SparseCore` scattered the results of chunks, they would be read from HBM again: 1.20 times the least in all.
/// The sums over all devices, which are in HBM, make up most of what is read twice.
#[test]
fn the_loop_in_llama_1b_over_8() {
    let config = llama([2048, 8192, 32, 8]);
    check_loop(("the_loop_in_llama_1b_over_8", "tpu7x:2x2x1"), &config, &["decode_64"], (1.17, 16 << 20));
}

/// In tiles of 16 rows, all experts of a layer would be copied in each step.
#[test]
fn the_experts_of_gpt_oss() {
    let config = serde_json::json!({
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "torch_dtype": "bfloat16", "vocab_size": 2048,
        "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": NUM_LAYERS, "head_dim": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 4,
        "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 150_000,
    });
    check_loop(("the_experts_of_gpt_oss", "tpu7x:2x2x1"), &config, &["decode_64", "decode_8"], (1.1, 64 << 20));
}
