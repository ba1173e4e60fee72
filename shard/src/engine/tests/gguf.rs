//! GGUF files, compared with transformers, which decodes the files with its own reader.
//!
//! `integration-tests/fixtures/make_gguf.py` makes the files with llama.cpp's converter, with matrices of most types.

use std::fs;
use std::path::{Path, PathBuf};

use devices::Device;
use proto::SamplingParams;

use super::ranks::Engines;
use super::references::{Reference, check_logits, token_ids};
use super::{Rig, args, fixture, ids};
use crate::args::{Dtype, ShardArgs};
use crate::engine::load;

const FILES: [&str; 7] = ["gemma2-bf16", "gemma3-q8", "llama-k", "llama-q4", "llama-q8", "qwen2-q4-1", "qwen3-f16"];
/// The largest difference of a log-probability, as a share of the largest absolute logit of the row.
const TOLERANCE: f64 = 2e-4;

fn file(name: &str) -> PathBuf {
    fixture("gguf").join(name).join("model.gguf")
}

/// Returns arguments for weights in float32, as in the references.
fn whole_floats(path: &Path) -> ShardArgs {
    let mut args = args(path.to_str().unwrap(), Device::CPU);
    args.model.dtype = Some(Dtype::Float32);
    args
}

#[test]
fn logits_and_tokens_agree_with_transformers() {
    assert_eq!(fs::read_dir(fixture("gguf")).unwrap().count(), FILES.len());
    for name in FILES {
        let mut rig = Rig::warm(Engines::load(&[whole_floats(&file(name))]).unwrap());
        for prompt in &Reference::read(&format!("gguf/{name}")).prompts {
            let prompt_ids = token_ids(&prompt["prompt"]);
            check_logits(&mut rig, &prompt_ids, &prompt["last_logits"], (TOLERANCE, name));
            let expected = token_ids(&prompt["greedy"]);
            let tokens = rig.generate(0, &prompt_ids, SamplingParams::greedy(), expected.len());
            assert_eq!(ids(&tokens), expected, "{name}");
        }
    }
}

#[test]
fn matrices_keep_the_size_of_their_blocks() {
    for (name, dtype) in [("llama-k", "bfloat16"), ("llama-q8", "bfloat16"), ("qwen3-f16", "float16")] {
        let engine = load::load(&args(file(name).to_str().unwrap(), Device::CPU), &mut |_, _, _| ()).unwrap();
        assert_eq!(engine.info().dtype, dtype, "{name}");
        assert_eq!(engine.info().eos_token_ids, [1], "{name}");
        let (in_memory, in_file) = (engine.info().weights_bytes, fs::metadata(file(name)).unwrap().len());
        assert!(in_memory < in_file, "{name}: {in_memory} bytes in memory, {in_file} in the file");
    }
}

/// A function that damages a good file.
type Damage = fn(&mut Vec<u8>);

/// Returns the error message for a file after `damage`.
fn message(name: &str, damage: impl FnOnce(&mut Vec<u8>)) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.gguf");
    let mut bytes = fs::read(file(name)).unwrap();
    damage(&mut bytes);
    fs::write(&path, bytes).unwrap();
    load::load(&whole_floats(&path), &mut |_, _, _| ()).map(drop).unwrap_err().to_string()
}

/// Replaces text by other text of the same length.
fn replace(bytes: &mut [u8], old: &str, new: &str) {
    assert_eq!(old.len(), new.len());
    let start = bytes.windows(old.len()).position(|window| window == old.as_bytes()).unwrap();
    bytes[start..start + old.len()].copy_from_slice(new.as_bytes());
}

/// Overwrites bytes at `offset` after the name of a tensor.
fn set_after(bytes: &mut [u8], tensor: &str, (offset, value): (usize, &[u8])) {
    let start = bytes.windows(tensor.len()).position(|window| window == tensor.as_bytes()).unwrap();
    let start = start + tensor.len() + offset;
    bytes[start..start + value.len()].copy_from_slice(value);
}

#[test]
fn what_is_wrong_is_named() {
    // After a name: 4 bytes for the number of dimensions, 8 for each of the two, 4 for the type, 8 for the offset.
    let cases: [(&str, Damage, &str); 7] = [
        ("cut", |bytes| bytes.truncate(bytes.len() - 64), "damaged.gguf ends before its tensor "),
        (
            "no head",
            |bytes| bytes.truncate(100),
            "damaged.gguf is not a GGUF file that can be read: a count in its header ",
        ),
        ("not one", |bytes| bytes[0] = b'X', "it does not begin with GGUF"),
        (
            "architecture",
            |bytes| replace(bytes, "llama", "mamba"),
            "architecture mamba of a GGUF file is not supported; 6 others are, such as llama (docs/models.md)",
        ),
        (
            "type",
            |bytes| set_after(bytes, "blk.1.attn_q.weight", (20, &39_u32.to_le_bytes())),
            "tensor blk.1.attn_q.weight of damaged.gguf has GGML type number 39 and shape [64, 64]",
        ),
        (
            "name",
            |bytes| replace(bytes, "blk.1.attn_q.weight", "blk.1.attn_x.weight"),
            "damaged.gguf has no tensor model.layers.1.self_attn.q_proj.weight",
        ),
        (
            "shape",
            |bytes| set_after(bytes, "blk.1.attn_k.weight", (12, &16_u64.to_le_bytes())),
            "tensor model.layers.1.self_attn.k_proj.weight of damaged.gguf has shape [16, 64], but the configuration of the model requires [32, 64]",
        ),
    ];
    for (name, damage, expected) in cases {
        let message = message("llama-q8", damage);
        assert!(message.contains(expected), "{name}: {message}");
    }
    // Removes the two dimensions of 8 bytes each.
    let no_dimensions = message("llama-q8", |bytes| {
        set_after(bytes, "token_embd.weight", (0, &[0; 4]));
        let start = bytes.windows(17).position(|window| window == b"token_embd.weight").unwrap();
        bytes.drain(start + 21..start + 37);
    });
    assert!(no_dimensions.contains("token_embd.weight is a tensor without dimensions"), "{no_dimensions}");
    // With this number of layers, queries are scaled by `hidden_size / num_attention_heads`.
    let no_heads = message("gemma2-bf16", |bytes| {
        set_after(bytes, "gemma2.block_count", (4, &46_u32.to_le_bytes()));
        set_after(bytes, "gemma2.attention.head_count", (4, &[0; 4]));
    });
    assert!(no_heads.contains("num_attention_heads is 0, expected a positive integer"), "{no_heads}");
    let not_a_number = message("llama-k", |bytes| {
        // The bytes are blocks of the last tensor; a scale with all bits set is NaN.
        let end = bytes.len();
        bytes[end - 512..].fill(0xff);
    });
    assert!(not_a_number.contains("has a value that is infinite or not a number"), "{not_a_number}");
}
