//! Checkpoints of several families with something that their family's file does not know: each is refused, or the log
//! names it.

use std::path::Path;

use devices::Device;
use model::models::Config;
use model_files::ModelFiles;
use serde_json::{Value, json};

use super::super::load::{Description, describe};
use super::args;
use super::corrupted::{damaged, loaded_from, rewrite};

/// One family of each kind: its checkpoint, the start of the paths of its keys, the start of the names of its tensors,
/// the keys of its activation and of the type of its rotary embedding, and a tensor that the others lack.
struct Family {
    name: &'static str,
    keys: &'static str,
    tensors: &'static str,
    activation: &'static str,
    rope_type: &'static str,
    tensor: &'static str,
}

const FAMILIES: [Family; 6] = [
    Family {
        name: "families/llama4-composite",
        keys: "text_config.",
        tensors: "language_model.",
        activation: "hidden_act",
        rope_type: "rope_parameters.rope_type",
        tensor: "model.layers.1.feed_forward.experts.gate_up_proj",
    },
    Family {
        name: "families/gemma3-composite",
        keys: "text_config.",
        tensors: "language_model.",
        activation: "hidden_activation",
        rope_type: "rope_parameters.full_attention.rope_type",
        tensor: "model.layers.1.pre_feedforward_layernorm.weight",
    },
    Family {
        name: "families/deepseek-v3",
        keys: "",
        tensors: "",
        activation: "hidden_act",
        rope_type: "rope_parameters.rope_type",
        tensor: "model.layers.1.self_attn.kv_b_proj.weight",
    },
    Family {
        name: "families/gpt-oss",
        keys: "",
        tensors: "",
        activation: "hidden_act",
        rope_type: "rope_parameters.rope_type",
        tensor: "model.layers.1.mlp.experts.gate_up_proj_bias",
    },
    Family {
        name: "families/qwen3-moe",
        keys: "",
        tensors: "",
        activation: "hidden_act",
        rope_type: "rope_parameters.rope_type",
        tensor: "model.layers.1.mlp.experts.7.down_proj.weight",
    },
    Family {
        name: "families/olmo2",
        keys: "",
        tensors: "",
        activation: "hidden_act",
        rope_type: "rope_parameters.rope_type",
        tensor: "model.layers.1.self_attn.q_norm.weight",
    },
];

impl Family {
    /// Returns the error of loading the checkpoint with another value of a key of its text model.
    fn message_with_key(&self, key: &str, value: Value) -> String {
        loaded_from(self.name, |directory| self.set_key(directory, key, value)).unwrap_err()
    }

    fn set_key(&self, directory: &Path, key: &str, value: Value) {
        let path = directory.join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let pointer = format!("/{}{key}", self.keys).replace('.', "/");
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(parent).unwrap()[last] = value;
        std::fs::write(path, config.to_string()).unwrap();
    }

    /// Returns the description of the checkpoint after `damage`.
    fn described(&self, damage: impl FnOnce(&Path)) -> Description {
        let directory = damaged(self.name, damage);
        let path = directory.path().to_str().unwrap();
        let config = Config::parse(&std::fs::read(directory.path().join("config.json")).unwrap()).unwrap();
        describe(&ModelFiles::open(path).unwrap(), &config, &args(path, Device::CPU).model, 1).unwrap()
    }
}

fn add_tensor(directory: &Path, tensor: &str) {
    rewrite(directory, |parts| parts.add(tensor, ("F32", &[2]), 0));
}

#[test]
fn unknown_tensors_and_keys_are_named_in_the_log() {
    for family in FAMILIES {
        let Family { name, keys, tensors, .. } = family;
        let new = ["model.layers.0.self_attn.new_norm.weight", "model.layers.1.mlp.new_bias", "lm_head.bias"];
        let description = family.described(|directory| {
            new.iter().for_each(|tensor| add_tensor(directory, &format!("{tensors}{tensor}")));
            family.set_key(directory, "new_scale", json!(2.5));
        });
        let Description { checkpoint, graphs, unread_keys, .. } = description;
        let unread = checkpoint.unread(graphs.decoder.weights().chain(graphs.logits.weights()));
        assert_eq!(unread, [new[2], new[0], new[1]], "{name}");
        assert_eq!(unread_keys, [format!("{keys}new_scale")], "{name}");
    }
}

#[test]
fn unknown_towers_are_refused() {
    for family in FAMILIES {
        let tower = "audio_tower.layers.0.weight";
        let result = loaded_from(family.name, |directory| add_tensor(directory, tower));
        if family.tensors.is_empty() {
            // A model that has only text reads on; the log names the tensor.
            let Description { checkpoint, graphs, .. } = family.described(|directory| add_tensor(directory, tower));
            let unread = checkpoint.unread(graphs.decoder.weights().chain(graphs.logits.weights()));
            assert_eq!((unread, result), (vec![tower], Ok(())), "{}", family.name);
            continue;
        }
        let message = result.unwrap_err();
        let expected =
            "tensor audio_tower.layers.0.weight of model.safetensors belongs neither to the text model nor to";
        assert!(message.starts_with(expected), "{}: {message}", family.name);
    }
}

#[test]
fn unknown_values_are_refused() {
    for family in FAMILIES {
        let Family { name, keys, activation, rope_type, .. } = family;
        let message = family.message_with_key(activation, json!("sinlu"));
        // gpt-oss has a single activation.
        let separator = if name == "families/gpt-oss" { r#"; only ""# } else { ", expected " };
        let expected = format!(r#"config.json: {keys}{activation} is "sinlu"{separator}silu"#);
        assert!(message.starts_with(&expected), "{name}: {message}");
        let message = family.message_with_key(rope_type, json!("spiral"));
        let expected = format!(r#"config.json: {keys}{rope_type} is "spiral", expected default"#);
        assert!(message.starts_with(&expected), "{name}: {message}");
        let message = family.message_with_key(&rope_type.replace("rope_type", "twist"), json!(3));
        let expected = format!("config.json: {keys}{} is 3; only null", rope_type.replace("rope_type", "twist"));
        assert!(message.starts_with(&expected), "{name}: {message}");
        let message = family.message_with_key("quantization_config", json!({"quant_method": "new_bits"}));
        assert!(message.contains("quantization_config.quant_method is new_bits; only fp8"), "{name}: {message}");
    }
}

#[test]
fn missing_tensors_and_wrong_shapes_are_refused() {
    for Family { name, tensors, tensor, .. } in FAMILIES {
        let stored = format!("{tensors}{tensor}");
        let message = loaded_from(name, |directory| {
            rewrite(directory, |parts| {
                let entry = parts.header.remove(&stored).unwrap();
                parts.header.insert(format!("{tensors}model.other"), entry);
            });
        });
        assert_eq!(message, Err(format!("model.safetensors has no tensor {stored}")), "{name}");
        let mut shape: Vec<usize> = Vec::new();
        let message = loaded_from(name, |directory| {
            rewrite(directory, |parts| {
                shape = serde_json::from_value(parts.header[&stored]["shape"].clone()).unwrap();
                parts.header[&stored]["shape"] = json!([&[1], &shape[..]].concat());
            });
        });
        let found = [&[1], &shape[..]].concat();
        let expected = format!(
            "tensor {stored} of model.safetensors has shape {found:?}, but the configuration of the model requires {shape:?}"
        );
        assert_eq!(message, Err(expected), "{name}");
    }
}
