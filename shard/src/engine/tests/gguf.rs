//! GGUF files, compared with transformers, which decodes the files with its own reader.
//!
//! `integration-tests/fixtures/make_gguf.py` makes the files with llama.cpp's converter, with matrices of most types.
//! `make_gguf_families.py` converts checkpoints of other families, without their tokenizers.

use std::fs;
use std::path::{Path, PathBuf};

use devices::Device;
use devices::plugins::testing::plugin_path;
use matrix::Cells;
use model::models::gguf_architectures;
use model_files::{Gguf, Part};
use proto::SamplingParams;

use super::ranks::{Engines, cpu_ranks};
use super::references::{Reference, check_logits, token_ids};
use super::{Rig, args, fixture, ids};
use crate::args::{Dtype, ShardArgs};
use crate::engine::load;

const FILES: [&str; 8] =
    ["gemma2-bf16", "gemma3-q8", "llama-iq4", "llama-k", "llama-q4", "llama-q8", "qwen2-q4-1", "qwen3-f16"];
/// The largest difference of a log-probability, as a share of the largest absolute logit of the row.
const TOLERANCE: f64 = 2e-4;
/// The same for a file whose matrices are rounded to 8 bits, but not in the reference.
const ROUNDED_TOLERANCE: f64 = 5e-2;

fn file(name: &str) -> PathBuf {
    checkpoints::file(&format!("gguf/{name}/model.gguf"))
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

/// Returns the names of the GGUF files of families.
fn names() -> Vec<String> {
    let files = checkpoints::names("gguf-families");
    files.iter().filter_map(|file| file.strip_suffix(".gguf")).map(str::to_owned).collect()
}

/// Returns the GGUF file of a checkpoint in `families/`.
fn family(name: &str) -> PathBuf {
    checkpoints::file(&format!("gguf-families/{name}.gguf"))
}

/// The references are those of the checkpoints from which the files were converted.
#[test]
fn families_compute_the_same_as_their_checkpoints() {
    for name in Cells::of(matrix::form("gguf"), names()) {
        let mut rig = Rig::warm(Engines::load(&[whole_floats(&family(&name))]).unwrap());
        // The name may end in the form of the file.
        let checkpoint = name.split('+').next().unwrap();
        for prompt in &Reference::read(&format!("families/{checkpoint}")).prompts {
            let prompt_ids = token_ids(&prompt["prompt"]);
            if name.ends_with("+q8") {
                check_logits(&mut rig, &prompt_ids, &prompt["last_logits"], (ROUNDED_TOLERANCE, &name));
                continue;
            }
            check_logits(&mut rig, &prompt_ids, &prompt["last_logits"], (TOLERANCE, &name));
            let expected = token_ids(&prompt["greedy"]);
            let tokens = rig.generate(0, &prompt_ids, SamplingParams::greedy(), expected.len());
            assert_eq!(ids(&tokens), expected, "{name}");
        }
    }
}

/// Ranks share experts, heads of latent attention and fused queries, keys and values.
#[test]
fn two_ranks_make_the_tokens_of_one() {
    for name in
        ["deepseek-v3", "glm-published+qkv", "gpt-oss-published-mxfp4", "llama4-published", "mixtral+each", "qwen3-moe"]
    {
        let path = family(name);
        let mut rig = cpu_ranks(&whole_floats(&path), 2, |args| load::load(args, &mut |_, _, _| ()));
        let checkpoint = name.split('+').next().unwrap();
        for prompt in &Reference::read(&format!("families/{checkpoint}")).prompts {
            let expected = token_ids(&prompt["greedy"]);
            let params = SamplingParams::greedy();
            let tokens = rig.generate(0, &token_ids(&prompt["prompt"]), params, expected.len());
            assert_eq!(ids(&tokens), expected, "{name}");
        }
    }
}

#[test]
fn xla_reads_the_same_experts_and_heads() {
    for name in ["deepseek-v3", "gpt-oss-published-mxfp4"] {
        if plugin_path(Device::XLA_CPU).is_none() {
            return;
        }
        let path = family(name);
        let mut args = args(path.to_str().unwrap(), Device::XLA_CPU);
        args.model.dtype = Some(Dtype::Float32);
        let mut rig = Rig::warm_for(Engines::load(&[args]).unwrap(), 1);
        for prompt in &Reference::read(&format!("families/{name}")).prompts {
            let expected = token_ids(&prompt["greedy"]);
            let params = SamplingParams::greedy();
            let tokens = rig.generate(0, &token_ids(&prompt["prompt"]), params, expected.len());
            assert_eq!(ids(&tokens), expected, "{name}");
        }
    }
}

/// Copies the files of a split model to a folder, except file number `without`.
fn split_model(without: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let part = Part { prefix: "model".to_owned(), number: 1, count: 3 };
    for number in (1..=3).filter(|number| *number != without) {
        let name = part.name(number);
        fs::copy(checkpoints::file(&format!("gguf-split/{name}")), folder.path().join(&name)).unwrap();
    }
    folder
}

#[test]
fn a_model_in_several_files_is_loaded_from_its_folder_or_first_file() {
    let folder = split_model(0);
    // A file with a tower for images is no second model.
    fs::copy(file("llama-q8"), folder.path().join("mmproj-model.gguf")).unwrap();
    let prompts = Reference::read("families/qwen3-vl").prompts;
    for path in [folder.path().to_owned(), folder.path().join("model-00001-of-00003.gguf")] {
        let mut rig = Rig::warm(Engines::load(&[whole_floats(&path)]).unwrap());
        check_logits(&mut rig, &token_ids(&prompts[0]["prompt"]), &prompts[0]["last_logits"], (TOLERANCE, "split"));
    }
}

#[test]
fn faults_of_split_files_are_named() {
    let message = |path: &Path| load::load(&whole_floats(path), &mut |_, _, _| ()).map(drop).unwrap_err().to_string();
    let folder = split_model(2);
    let first = folder.path().join("model-00001-of-00003.gguf");
    let missing = message(&first);
    assert!(
        missing.contains(
            "model-00002-of-00003.gguf is not a GGUF file that can be read: it is file 2 of 3 and is missing"
        ),
        "{missing}"
    );
    let last = folder.path().join("model-00003-of-00003.gguf");
    let not_first = message(&last);
    assert!(
        not_first.contains("split.no is 2; pass the first of its 3 files, model-00001-of-00003.gguf"),
        "{not_first}"
    );
    fs::copy(&last, folder.path().join("model-00002-of-00003.gguf")).unwrap();
    let twice = message(&first);
    assert!(twice.contains("split.no is 2 and split.count is 3, expected 1 and 3"), "{twice}");
    let other_name = folder.path().join("model.gguf");
    fs::rename(&first, &other_name).unwrap();
    let renamed = message(&other_name);
    assert!(renamed.contains("split.count is 3, but it is not named like model-00001-of-00003.gguf"), "{renamed}");
    let folder = split_model(0);
    let first = folder.path().join("model-00001-of-00003.gguf");
    let mut bytes = fs::read(&first).unwrap();
    set_after(&mut bytes, "split.tensors.count", (4, &9_u32.to_le_bytes()));
    fs::write(&first, bytes).unwrap();
    let too_many = message(&first);
    assert!(too_many.contains("split.tensors.count is 9, but its 3 files have "), "{too_many}");
}

#[test]
fn every_architecture_has_a_file() {
    let files = FILES.iter().map(|name| file(name)).chain(names().into_iter().map(|name| family(&name)));
    let tested: Vec<String> =
        files.map(|path| Gguf::open(&path).unwrap().text("general.architecture").unwrap().to_owned()).collect();
    for architecture in gguf_architectures() {
        assert!(tested.iter().any(|tested| tested == architecture), "{architecture}");
    }
}

#[test]
fn matrices_keep_the_size_of_their_blocks() {
    let in_blocks = ["llama-iq4", "llama-k", "llama-q8"].map(|name| (name, "bfloat16"));
    for (name, dtype) in in_blocks.into_iter().chain([("qwen3-f16", "float16")]) {
        let engine = load::load(&args(file(name).to_str().unwrap(), Device::CPU), &mut |_, _, _| ()).unwrap();
        assert_eq!(engine.info().dtype, dtype, "{name}");
        assert_eq!(engine.info().eos_token_ids, [1], "{name}");
        let (in_memory, in_file) = (engine.info().weights_bytes, fs::metadata(file(name)).unwrap().len());
        // Matrices of floats have padding in memory, up to whole panels of rows.
        let is_smaller = in_memory < in_file || dtype == "float16";
        assert!(is_smaller, "{name}: {in_memory} bytes in memory, {in_file} in the file");
    }
}

/// Experts with a tensor for each matrix also stay in blocks.
#[test]
fn experts_in_many_tensors_are_those_in_one() {
    let [together, each] = ["together", "each"].map(|form| {
        let path = checkpoints::file(&format!("gguf-experts/{form}.gguf"));
        let mut rig = Rig::warm(Engines::load(&[args(path.to_str().unwrap(), Device::CPU)]).unwrap());
        let params = SamplingParams { top_n_tokens: 128, ..SamplingParams::greedy() };
        let tokens = rig.generate(0, &[0, 5, 77, 31, 100], params, 8);
        let logprobs: Vec<Vec<f32>> = tokens.iter().map(|token| token.top_logprobs().to_vec()).collect();
        (ids(&tokens), logprobs, rig.engine.info().weights_bytes)
    });
    assert_eq!(each, together);
}

/// A function that damages a good file.
type Damage = fn(&mut Vec<u8>);

/// Returns the error message for a file after `damage`.
fn message(name: &str, damage: impl FnOnce(&mut Vec<u8>)) -> String {
    message_of(&file(name), damage)
}

/// As [`message`], for the file at this path.
fn message_of(file: &Path, damage: impl FnOnce(&mut Vec<u8>)) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.gguf");
    let mut bytes = fs::read(file).unwrap();
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
fn damage_to_a_file_is_named() {
    // After a name: 4 bytes for the number of dimensions, 8 for each of the two, 4 for the type, 8 for the offset.
    let cases: [(&str, Damage, &str); 9] = [
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
            "general.architecture is mamba; only afmoe, apertus, arcee, ",
        ),
        (
            "type",
            |bytes| set_after(bytes, "blk.1.attn_q.weight", (20, &40_u32.to_le_bytes())),
            "tensor blk.1.attn_q.weight of damaged.gguf has GGML type NVFP4 (40) and shape [64, 64]; supported are F32 (0), ",
        ),
        (
            "type without a name",
            |bytes| set_after(bytes, "blk.1.attn_q.weight", (20, &99_u32.to_le_bytes())),
            "has GGML type number 99 and shape [64, 64]; supported",
        ),
        (
            "type of larger blocks",
            |bytes| set_after(bytes, "blk.1.attn_q.weight", (20, &23_u32.to_le_bytes())),
            "has GGML type IQ4_XS (23) and shape [64, 64]; supported",
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
    let twist = message("llama-q8", |bytes| replace(bytes, "llama.rope.freq_base", "llama.residual_scale"));
    let expected = "llama.residual_scale is 10000.0; only 0 in models of this architecture is supported";
    assert!(twist.contains(expected), "{twist}");
    let not_a_number = message("llama-k", |bytes| {
        // The bytes are blocks of the last tensor; a scale with all bits set is NaN.
        let end = bytes.len();
        bytes[end - 512..].fill(0xff);
    });
    assert!(not_a_number.contains("has a value that is infinite or not a number"), "{not_a_number}");
}

/// Inserts a number before all other metadata.
fn add_count(bytes: &mut Vec<u8>, key: &str, value: u32) {
    const U32: u32 = 4;
    // After the magic, the version and the number of tensors, 8 bytes have the number of keys.
    let keys = bytes[16..24].try_into().map(u64::from_le_bytes).unwrap() + 1;
    bytes[16..24].copy_from_slice(&keys.to_le_bytes());
    let number = [U32.to_le_bytes(), value.to_le_bytes()].concat();
    let entry = [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &number].concat();
    bytes.splice(24..24, entry);
}

#[test]
fn forms_of_families_that_are_not_supported_are_named() {
    let cases: [(&str, Damage, &str); 4] = [
        (
            "mixtral+each",
            |bytes| replace(bytes, "blk.1.ffn_up.3.weight", "blk.1.ffn_up.x.weight"),
            "has no tensor model.layers.1.block_sparse_moe.experts.3.up_proj.weight",
        ),
        (
            "llama4-published-128",
            |bytes| add_count(bytes, "llama4.attention.sliding_window", 0),
            "llama4.attention.sliding_window is 0; only a model in which three of four layers have chunks is supported",
        ),
        (
            "llama4-published-128",
            |bytes| add_count(bytes, "llama4.attention.sliding_window_pattern", 2),
            "llama4.attention.sliding_window_pattern is 2; only 4 is supported",
        ),
        (
            "granite-swa-bias",
            |bytes| add_count(bytes, "granite_swa.expert_count", 4),
            "granite_swa.expert_count is 4; only 0 in models of this architecture is supported",
        ),
    ];
    for (name, damage, expected) in cases {
        let message = message_of(&family(name), damage);
        assert!(message.contains(expected), "{name}: {message}");
    }
}
