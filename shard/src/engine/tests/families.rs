//! Every family of models, compared with transformers on one and on two ranks of the CPU, and some families on XLA-CPU.
//!
//! `integration-tests/fixtures/make_families.py` makes the checkpoints, two or more for each architecture. Their
//! prompts and continuations are longer than their windows and original contexts. Greedy tokens must be the same;
//! log-probabilities must agree within a stated tolerance.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use devices::plugins::testing::plugin_path;
use devices::{Device, Quantize};
use matrix::Cells;
use model::models::{Config, architectures};
use model_files::ModelFiles;
use proto::SamplingParams;

use super::super::load::{Description, describe};
use super::ranks::{Engines, on_cpu_ranks};
use super::references::{Reference, check_logits, check_top, difference, token_ids};
use super::{Rig, args, fixture, ids, tolerance};
use crate::args::{Dtype, KvCacheDtype, ShardArgs};

/// The largest difference of a log-probability, as a share of the largest absolute logit of the row.
const TOLERANCE: f64 = 2e-4;

/// The same tolerance for weights, activations and optionally keys and values in bfloat16: rounding errors of up to
/// 2^-8 add up over layers.
const SHORT_TOLERANCE: f64 = 0.03;

/// The same tolerance for matrices and activations that are rounded to 8 bits.
const INT8_TOLERANCE: f64 = 0.15;

/// Returns the names of all checkpoints.
fn names() -> Vec<String> {
    checkpoints::names("families")
}

fn folder(name: String) -> (String, PathBuf) {
    let path = fixture(&format!("families/{name}"));
    (name, path)
}

/// Returns all checkpoints with their names.
fn families() -> impl Iterator<Item = (String, PathBuf)> {
    names().into_iter().map(folder)
}

/// Returns the checkpoints that this run computes in a form of the matrix.
fn cells(form: &str) -> impl Iterator<Item = (String, PathBuf)> {
    Cells::of(matrix::form(form), names()).map(folder)
}

/// Loads on `devices_per_shard` devices of XLA-CPU, with a single slot and so with few programs. If there is no plugin,
/// prints that and returns `None`.
fn on_xla(path: &Path, devices_per_shard: u32) -> Option<Rig> {
    plugin_path(Device::XLA_CPU)?;
    let args = ShardArgs { devices_per_shard, ..args(path.to_str().unwrap(), Device::XLA_CPU) };
    Some(Rig::warm_for(Engines::load(&[args]).unwrap(), 1))
}

/// Checks the greedy tokens after each prompt, and the log-probabilities of the best tokens at the first of them.
fn check_tokens(rig: &mut Rig, name: &str, what: &str) {
    let params = SamplingParams { top_n_tokens: 5, ..SamplingParams::greedy() };
    for prompt in &Reference::read(&format!("families/{name}")).prompts {
        let expected = token_ids(&prompt["greedy"]);
        let tokens = rig.generate(0, &token_ids(&prompt["prompt"]), params.clone(), expected.len());
        assert_eq!(ids(&tokens), expected, "{name} on {what}");
        check_top(&tokens[0], &prompt["last_logits"], TOLERANCE, &format!("{name} on {what}"));
    }
}

#[test]
fn every_architecture_has_two_checkpoints() {
    let named = |path: PathBuf| {
        let config = Config::parse(&std::fs::read(path.join("config.json")).unwrap()).unwrap();
        config.architecture().unwrap().to_owned()
    };
    let tested: Vec<String> = families().map(|(_, path)| named(path)).collect();
    for architecture in architectures() {
        let count = tested.iter().filter(|tested| *tested == architecture).count();
        assert!(count >= 2, "{architecture} has {count} checkpoints in fixtures/families");
    }
}

#[test]
fn logits_agree_with_transformers() {
    for (name, path) in cells("cpu") {
        let mut rig = Rig::new(path.to_str().unwrap(), Device::CPU);
        for prompt in &Reference::read(&format!("families/{name}")).prompts {
            let token_ids = token_ids(&prompt["prompt"]);
            check_logits(&mut rig, &token_ids, &prompt["last_logits"], (TOLERANCE, &name));
            for (position, logits) in prompt["logits"].as_array().into_iter().flatten().enumerate() {
                check_logits(&mut rig, &token_ids[..=position], logits, (TOLERANCE, &name));
            }
        }
        check_tokens(&mut rig, &name, "the CPU");
    }
}

#[test]
fn short_floats_are_near() {
    for (name, path) in cells("bf16") {
        // A rounded score may choose another expert. Families with experts are tested here only with keys and values in
        // f32, as recorded.
        let tolerance = tolerance(true, SHORT_TOLERANCE, 2.0 * SHORT_TOLERANCE);
        let with_experts =
            ["deepseek", "dots1", "flex-olmo", "gpt-oss", "kimi", "llama4", "mellum", "minimax", "mixtral", "moe"];
        let has_experts = with_experts.iter().any(|part| name.contains(part));
        let kv_cache_dtypes = [KvCacheDtype::F32, KvCacheDtype::Auto];
        for kv_cache_dtype in &kv_cache_dtypes[..if has_experts { 1 } else { 2 }] {
            let mut args = args(path.to_str().unwrap(), Device::CPU);
            args.model.dtype = Some(Dtype::Bfloat16);
            args.model.kv_cache_dtype = *kv_cache_dtype;
            let mut rig = Rig::warm(Engines::load(&[args]).unwrap());
            let what = format!("{name}, keys and values in {kv_cache_dtype}");
            for prompt in &Reference::read(&format!("families/{name}")).prompts {
                check_logits(&mut rig, &token_ids(&prompt["prompt"]), &prompt["last_logits"], (tolerance, &what));
            }
        }
    }
}

/// Every matrix of every family is rounded by `--quantize`, however its checkpoint stores the matrix.
///
/// A rounded score may choose another expert at some positions, so the median of all recorded positions counts. Random
/// matrices of 4 bits say too little of a family; `quantized` reads a trained model with them.
#[test]
fn quantized_weights_are_near() {
    let mut far = Vec::new();
    for (name, path) in cells("int8") {
        let mut args = args(path.to_str().unwrap(), Device::CPU);
        args.model.quantize = Some(Quantize::Int8);
        let mut rig = Rig::warm(Engines::load(&[args]).unwrap());
        let mut differences = Vec::new();
        for prompt in &Reference::read(&format!("families/{name}")).prompts {
            let token_ids = token_ids(&prompt["prompt"]);
            differences.push(difference(&mut rig, &token_ids, &prompt["last_logits"]));
            for (position, logits) in prompt["logits"].as_array().into_iter().flatten().enumerate() {
                differences.push(difference(&mut rig, &token_ids[..=position], logits));
            }
        }
        differences.sort_by(f64::total_cmp);
        let median = differences[differences.len() / 2];
        // Weights that were not rounded would agree.
        if !(TOLERANCE..=INT8_TOLERANCE).contains(&median) {
            far.push(format!("{name}: {median}"));
        }
    }
    assert!(far.is_empty(), "{}", far.join("\n"));
}

/// In bfloat16 the CPU keeps experts in MXFP4. In other types they become floats.
#[test]
fn experts_in_mxfp4_take_four_bits_and_scales() {
    let path = fixture("families/gpt-oss-mxfp4");
    let weights_bytes = |dtype: Dtype| {
        let mut args = args(path.to_str().unwrap(), Device::CPU);
        args.model.dtype = Some(dtype);
        Engines::load(&[args]).unwrap().info().weights_bytes
    };
    let num_weights = 3 * 8 * 3 * 64 * 32;
    let [short, kept] = [Dtype::Float16, Dtype::Bfloat16].map(weights_bytes);
    assert_eq!(short - kept, 2 * num_weights - num_weights * 9 / 16);
}

/// Only the parameters of the text model count, and `/info` has the name of the whole architecture.
#[test]
fn towers_are_left_out() {
    let info = |name: &str| {
        let args = args(fixture(&format!("families/{name}")).to_str().unwrap(), Device::CPU);
        Engines::load(&[args]).unwrap().info().clone()
    };
    let info = info("mistral3-composite");
    assert_eq!(info.architecture, "Mistral3ForConditionalGeneration");
    let (hidden, vocab, inner, heads, kv_heads) = (48, 128, 88, 4 * 16, 2 * 16);
    let layer = 2 * hidden * (heads + kv_heads) + 3 * hidden * inner + 2 * hidden;
    assert_eq!(info.num_parameters, 2 * vocab * hidden + 2 * layer + hidden);
    assert_eq!((info.vocab_size, info.max_position_embeddings), (128, 128));
}

fn description(path: &Path) -> Description {
    let files = ModelFiles::open(path.to_str().unwrap()).unwrap();
    let config = Config::parse(&std::fs::read(path.join("config.json")).unwrap()).unwrap();
    let model = args(path.to_str().unwrap(), Device::CPU).model;
    describe(&files, &config, &model, 1).unwrap()
}

/// A tensor or a key that no family reads, such as a bias, would be a part of the model that its file does not know.
#[test]
fn every_tensor_and_every_key_is_read() {
    let mut unread: Vec<String> = Vec::new();
    for (name, path) in families() {
        let Description { checkpoint, graphs, unread_keys, .. } = description(&path);
        let tensors = checkpoint.unread(graphs.decoder.weights().chain(graphs.logits.weights()));
        unread.extend(
            tensors.into_iter().chain(unread_keys.iter().map(String::as_str)).map(|what| format!("{name}: {what}")),
        );
    }
    assert!(unread.is_empty(), "{}", unread.join("\n"));
}

/// Returns the operations of a model without their sizes: their names, their numbers of operands and the attributes
/// that choose a computation.
fn operations(path: &Path) -> BTreeSet<String> {
    let Description { graphs, .. } = description(path);
    let texts = [graphs.decoder, graphs.logits].map(|graph| graph.to_string());
    let lines = texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.strip_prefix('%')?.split_once(" = "));
    let operation = |line: &str| {
        let words: Vec<&str> = line.split(" : ").next().unwrap().split_whitespace().collect();
        let num_operands = words.iter().filter(|word| word.starts_with('%')).count();
        let attributes =
            words[1..].iter().filter(|word| !word.starts_with('%')).map(|word| match word.split_once('=') {
                Some((key, value)) if value.starts_with(|c: char| c.is_ascii_digit() || c == '-') => key,
                _ => word,
            });
        let attributes: Vec<&str> = attributes.collect();
        format!("{} of {num_operands} {}", words[0], attributes.join(" ")).trim_end().to_owned()
    };
    let is_data = |line: &&str| ["weight ", "constant ", "input "].iter().any(|data| line.starts_with(data));
    lines.map(|(_, line)| line).filter(|line| !is_data(line)).map(operation).collect()
}

/// The core that XLA-CPU compiles has every operation of every family, with all attributes.
#[test]
fn the_compiled_core_has_every_operation() {
    let compiled = ["xla", "xla-two-devices"].map(matrix::form);
    let is_compiled = |name: &String| compiled.iter().any(|form| form.is_core(name));
    let sample: BTreeSet<String> =
        families().filter(|(name, _)| is_compiled(name)).flat_map(|(_, path)| operations(&path)).collect();
    let mut missing: Vec<String> = Vec::new();
    for (name, path) in families() {
        missing.extend(operations(&path).difference(&sample).map(|operation| format!("{operation}: {name}")));
    }
    missing.sort();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn two_ranks_agree_with_transformers() {
    for (name, path) in cells("two-ranks") {
        check_tokens(&mut on_cpu_ranks(path.to_str().unwrap(), 2), &name, "two ranks of the CPU");
    }
}

#[test]
fn xla_agrees_with_transformers() {
    for (name, path) in cells("xla") {
        let Some(mut rig) = on_xla(&path, 1) else { return };
        check_tokens(&mut rig, &name, "XLA-CPU");
    }
}

#[test]
fn two_devices_of_xla_agree_with_transformers() {
    for (name, path) in cells("xla-two-devices") {
        let Some(mut rig) = on_xla(&path, 2) else { return };
        check_tokens(&mut rig, &name, "two devices of XLA-CPU");
    }
}
