//! Damaged checkpoints: loading must fail before anything is served, with a message that names the file, and the tensor
//! if one is wrong.

use std::fs;
use std::path::Path;

use devices::Device;
use serde_json::{Map, Value, json};

use super::{args, fixture};
use crate::engine::load;

const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// A square matrix, and one that is not square.
const Q_PROJ: &str = "model.layers.0.self_attn.q_proj.weight";
const K_PROJ: &str = "model.layers.0.self_attn.k_proj.weight";

/// The header and the data of a safetensors file.
pub(super) struct Parts {
    pub(super) header: Map<String, Value>,
    pub(super) data: Vec<u8>,
}

impl Parts {
    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        Self { header: serde_json::from_slice(&bytes[8..8 + len]).unwrap(), data: bytes[8 + len..].to_vec() }
    }

    fn bytes(&self) -> Vec<u8> {
        let header = serde_json::to_vec(&self.header).unwrap();
        [&(header.len() as u64).to_le_bytes()[..], &header, &self.data].concat()
    }

    /// Returns start and end of a tensor.
    pub(super) fn offsets(&mut self, tensor: &str) -> [usize; 2] {
        serde_json::from_value(self.header[tensor]["data_offsets"].clone()).unwrap()
    }

    fn set(&mut self, tensor: &str, key: &str, value: Value) {
        self.header[tensor][key] = value;
    }

    /// Adds a tensor of 32-bit numbers, all equal to `number`.
    pub(super) fn add(&mut self, tensor: &str, (dtype, shape): (&str, &[usize]), number: u32) {
        let start = self.data.len();
        let len = shape.iter().product::<usize>();
        self.data.extend((0..len).flat_map(|_| number.to_le_bytes()));
        let offsets = [start, self.data.len()];
        self.header.insert(tensor.to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
    }
}

/// A function that damages a directory with a good checkpoint.
type Damage = fn(&Path);

pub(super) fn rewrite(directory: &Path, change: impl FnOnce(&mut Parts)) {
    let path = directory.join(FILE);
    let mut parts = Parts::read(&path);
    change(&mut parts);
    fs::write(path, parts.bytes()).unwrap();
}

fn rewrite_bytes(directory: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(directory.join(FILE)).unwrap();
    change(&mut bytes);
    fs::write(directory.join(FILE), bytes).unwrap();
}

pub(super) fn set_config(directory: &Path, key: &str, value: Value) {
    let path = directory.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config[key] = value;
    fs::write(path, config.to_string()).unwrap();
}

/// Moves the tensors to a file with another name, and writes an index.
fn split(directory: &Path, index: &Value) {
    fs::rename(directory.join(FILE), directory.join("part-1.safetensors")).unwrap();
    fs::write(directory.join(INDEX), index.to_string()).unwrap();
}

/// Sets the first number of a tensor.
fn set_number(directory: &Path, tensor: &str, number: f32) {
    rewrite(directory, |parts| {
        let [start, _] = parts.offsets(tensor);
        parts.data[start..start + 4].copy_from_slice(&number.to_le_bytes());
    });
}

/// Stores a matrix as GPTQ does, in two groups of columns.
fn as_gptq(directory: &Path, change: impl FnOnce(&mut Parts)) {
    set_config(directory, "quantization_config", json!({"quant_method": "gptq", "bits": 4}));
    rewrite(directory, |parts| {
        let shape: [usize; 2] = serde_json::from_value(parts.header[Q_PROJ]["shape"].clone()).unwrap();
        let base = Q_PROJ.strip_suffix(".weight").unwrap();
        parts.add(&format!("{base}.qweight"), ("I32", &[shape[1] / 8, shape[0]]), 0x7654_3210);
        parts.add(&format!("{base}.qzeros"), ("I32", &[2, shape[0] / 8]), 0x7777_7777);
        parts.add(&format!("{base}.scales"), ("F32", &[2, shape[0]]), 0.01_f32.to_bits());
        parts.add(&format!("{base}.g_idx"), ("I32", &[shape[1]]), 1);
        change(parts);
    });
}

/// Stores a matrix as fp8, with scales per block.
fn as_fp8(directory: &Path, change: impl FnOnce(&mut Parts)) {
    set_config(directory, "quantization_config", json!({"quant_method": "fp8", "weight_block_size": [16, 16]}));
    rewrite(directory, |parts| {
        let shape: [usize; 2] = serde_json::from_value(parts.header[K_PROJ]["shape"].clone()).unwrap();
        let [start, len] = [parts.data.len(), shape[0] * shape[1]];
        parts.data.resize(start + len, 0x38);
        let offsets = [start, start + len];
        // The floats stay in the file, under another name.
        let floats = parts.header.remove(K_PROJ).unwrap();
        parts.header.insert("unused".to_owned(), floats);
        parts.header.insert(K_PROJ.to_owned(), json!({"dtype": "F8_E4M3", "shape": shape, "data_offsets": offsets}));
        change(parts);
    });
}

const CASES: [(&str, Damage, &str); 35] = [
    ("no checkpoint", |dir| fs::remove_file(dir.join(FILE)).unwrap(), "has neither model.safetensors nor"),
    (
        "a pickle",
        |dir| fs::rename(dir.join(FILE), dir.join("pytorch_model.bin")).unwrap(),
        "has only pytorch_model.bin, a Python pickle",
    ),
    ("an empty file", |dir| fs::write(dir.join(FILE), "").unwrap(), "model.safetensors is not a complete"),
    (
        "less than a header's length",
        |dir| rewrite_bytes(dir, |bytes| bytes.truncate(5)),
        "model.safetensors is not a complete",
    ),
    ("half a header", |dir| rewrite_bytes(dir, |bytes| bytes.truncate(100)), "model.safetensors is not a complete"),
    (
        "a header larger than any",
        |dir| rewrite_bytes(dir, |bytes| bytes[..8].fill(0xff)),
        "model.safetensors is not a complete",
    ),
    ("no header", |dir| rewrite_bytes(dir, |bytes| bytes[8] = b'x'), "model.safetensors is not a complete"),
    (
        "an HTML page",
        |dir| fs::write(dir.join(FILE), "<!DOCTYPE html><title>404</title>").unwrap(),
        "model.safetensors is not a complete",
    ),
    (
        "a pointer of Git LFS",
        |dir| fs::write(dir.join(FILE), "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n").unwrap(),
        "model.safetensors is a pointer of Git LFS",
    ),
    ("a byte too few", |dir| rewrite_bytes(dir, |bytes| _ = bytes.pop()), "model.safetensors is not a complete"),
    ("bytes too many", |dir| rewrite_bytes(dir, |bytes| bytes.extend([0; 8])), "model.safetensors is not a complete"),
    (
        "tensors that overlap",
        |dir| {
            rewrite(dir, |parts| {
                let [start, end] = parts.offsets(Q_PROJ);
                parts.set(Q_PROJ, "data_offsets", json!([start - 64, end - 64]));
            })
        },
        "model.safetensors is not a complete",
    ),
    (
        "a tensor that ends before it begins",
        |dir| {
            rewrite(dir, |parts| {
                let [start, end] = parts.offsets(Q_PROJ);
                parts.set(Q_PROJ, "data_offsets", json!([end, start]));
            })
        },
        "model.safetensors is not a complete",
    ),
    (
        "a shape that its bytes do not fill",
        |dir| rewrite(dir, |parts| parts.set(Q_PROJ, "shape", json!([1, 1]))),
        "model.safetensors is not a complete",
    ),
    (
        "a shape that overflows",
        |dir| rewrite(dir, |parts| parts.set(Q_PROJ, "shape", json!([u64::MAX, 8]))),
        "model.safetensors is not a complete",
    ),
    (
        "an unknown type",
        |dir| rewrite(dir, |parts| parts.set(Q_PROJ, "dtype", json!("F33"))),
        "model.safetensors is not a complete",
    ),
    (
        "a tensor under another name",
        |dir| {
            rewrite(dir, |parts| {
                let tensor = parts.header.remove(Q_PROJ).unwrap();
                parts.header.insert("other".to_owned(), tensor);
            })
        },
        "model.safetensors has no tensor model.layers.0.self_attn.q_proj.weight",
    ),
    (
        "a matrix the other way round",
        |dir| {
            rewrite(dir, |parts| {
                let mut shape: Vec<usize> = serde_json::from_value(parts.header[K_PROJ]["shape"].clone()).unwrap();
                shape.reverse();
                parts.set(K_PROJ, "shape", json!(shape));
            })
        },
        "tensor model.layers.0.self_attn.k_proj.weight of model.safetensors has shape [64, 16], but the configuration of the model requires [16, 64]",
    ),
    (
        "integers",
        |dir| rewrite(dir, |parts| parts.set(Q_PROJ, "dtype", json!("I32"))),
        "q_proj.weight of model.safetensors is I32; only F32, F16 and BF16 are supported",
    ),
    (
        "not a number",
        |dir| set_number(dir, Q_PROJ, f32::NAN),
        "tensor model.layers.0.self_attn.q_proj.weight of model.safetensors has a value that is infinite or not a number",
    ),
    (
        "infinity in a norm",
        |dir| set_number(dir, "model.norm.weight", f32::NEG_INFINITY),
        "tensor model.norm.weight of model.safetensors has a value that is infinite",
    ),
    (
        "not a number in the embeddings",
        |dir| set_number(dir, "model.embed_tokens.weight", f32::NAN),
        "tensor model.embed_tokens.weight of model.safetensors",
    ),
    (
        "an index that is not JSON",
        |dir| {
            split(dir, &json!(null));
            fs::write(dir.join(INDEX), "{").unwrap();
        },
        "model.safetensors.index.json is not JSON",
    ),
    (
        "an index without a map",
        |dir| split(dir, &json!({"metadata": {}})),
        "model.safetensors.index.json has no object weight_map",
    ),
    (
        "an index that leaves the directory",
        |dir| split(dir, &json!({"weight_map": {"a": "../part-1.safetensors"}})),
        "gives no plain file name for tensor a",
    ),
    (
        "a file of the index that is not there",
        |dir| split(dir, &json!({"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}})),
        "lists part-2.safetensors, which",
    ),
    (
        "a tensor in two files",
        |dir| {
            split(dir, &json!({"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}));
            fs::copy(dir.join("part-1.safetensors"), dir.join("part-2.safetensors")).unwrap();
        },
        "is both in part-1.safetensors and in part-2.safetensors",
    ),
    (
        "a larger vocabulary",
        |dir| set_config(dir, "vocab_size", json!(1000)),
        "tensor model.embed_tokens.weight of model.safetensors has shape",
    ),
    (
        "gptq without zeros",
        |dir| {
            as_gptq(dir, |parts| {
                let zeros = parts.header.remove("model.layers.0.self_attn.q_proj.qzeros").unwrap();
                parts.header.insert("other".to_owned(), zeros);
            })
        },
        "has no tensor model.layers.0.self_attn.q_proj.qzeros",
    ),
    (
        "gptq with another shape",
        |dir| {
            as_gptq(dir, |parts| {
                parts.set("model.layers.0.self_attn.q_proj.qweight", "shape", json!([64, 8]));
            })
        },
        "tensor model.layers.0.self_attn.q_proj.qweight of model.safetensors has shape [64, 8], but the configuration of the model requires [8, 64]",
    ),
    (
        "a group that is not there",
        |dir| {
            as_gptq(dir, |parts| {
                let [start, _] = parts.offsets("model.layers.0.self_attn.q_proj.g_idx");
                parts.data[start..start + 4].copy_from_slice(&(-1_i32).to_le_bytes());
            })
        },
        "q_proj.g_idx of model.safetensors names group -1, but there are only 2 groups, counted from 0",
    ),
    (
        "a scale of gptq that is not a number",
        |dir| {
            as_gptq(dir, |parts| {
                // All columns are in the second group.
                let [_, end] = parts.offsets("model.layers.0.self_attn.q_proj.scales");
                parts.data[end - 4..end].copy_from_slice(&f32::NAN.to_le_bytes());
            });
        },
        "q_proj.weight of model.safetensors has a value that is infinite or not a number",
    ),
    ("fp8 without scales", |dir| as_fp8(dir, |_| ()), "has no tensor model.layers.0.self_attn.k_proj.weight_scale"),
    (
        "fp8 with scales of other blocks",
        |dir| {
            as_fp8(dir, |parts| {
                parts.add("model.layers.0.self_attn.k_proj.weight_scale_inv", ("F32", &[4, 1]), 0x3f80_0000);
            })
        },
        "k_proj.weight_scale_inv of model.safetensors has shape [4, 1], but the configuration of the model requires [1, 4]",
    ),
    (
        "fp8 that is not a number",
        |dir| {
            as_fp8(dir, |parts| {
                parts.add("model.layers.0.self_attn.k_proj.weight_scale_inv", ("F32", &[1, 4]), 0x3f80_0000);
                let [start, _] = parts.offsets(K_PROJ);
                parts.data[start + 7] = 0x7f;
            })
        },
        "k_proj.weight of model.safetensors has a value that is infinite or not a number",
    ),
];

/// Returns a copy of the checkpoint `name`, after `damage`.
pub(super) fn damaged(name: &str, damage: impl FnOnce(&Path)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in fs::read_dir(fixture(name)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), directory.path().join(file.file_name())).unwrap();
    }
    damage(directory.path());
    directory
}

/// Returns the result of loading a good checkpoint after `damage`.
fn loaded(damage: impl FnOnce(&Path)) -> Result<(), String> {
    loaded_from("tiny-llama-gqa-untied", damage)
}

/// Returns the result of loading the checkpoint `name` after `damage`.
pub(super) fn loaded_from(name: &str, damage: impl FnOnce(&Path)) -> Result<(), String> {
    let directory = damaged(name, damage);
    let result = load::load(&args(directory.path().to_str().unwrap(), Device::CPU), &mut |_, _, _| ());
    result.map(drop).map_err(|error| {
        let sources = std::iter::successors(std::error::Error::source(&error), |error| error.source());
        std::iter::once(error.to_string()).chain(sources.map(ToString::to_string)).collect::<Vec<_>>().join(": ")
    })
}

#[test]
fn every_damage_is_named() {
    let mut wrong = Vec::new();
    for (name, damage, expected) in CASES {
        match loaded(damage) {
            Ok(()) => wrong.push(format!("{name}: loaded")),
            Err(message) if !message.contains(expected) => wrong.push(format!("{name}: {message}")),
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_undamaged_models_load() {
    let scale = |parts: &mut Parts| {
        parts.add("model.layers.0.self_attn.k_proj.weight_scale_inv", ("F32", &[1, 4]), 0x3f80_0000);
    };
    assert_eq!(loaded(|_| ()), Ok(()));
    assert_eq!(loaded(|dir| as_gptq(dir, |_| ())), Ok(()));
    assert_eq!(loaded(|dir| as_fp8(dir, scale)), Ok(()));
    assert_eq!(loaded(|dir| split(dir, &json!({"weight_map": {"a": "part-1.safetensors"}}))), Ok(()));
}
