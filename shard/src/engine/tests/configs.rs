//! `config.json` files and GGUF headers with arbitrary values: each gives a model or an error message, without a panic
//! and without allocating the sizes that it claims.

use std::collections::BTreeSet;
use std::path::PathBuf;

use backend::ModelGraphs;
use model::models::{self, Config};
use model::weights::{self, Checkpoint};
use model_files::Gguf;
use numbers::FloatType;
use serde_json::{Value, json};

use super::fixture;

/// Builds the graphs of the model that a `config.json` describes.
fn build(json: &Value, num_shards: usize) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let config = Config::parse(json.to_string().as_bytes()).map_err(|error| text(&error))?;
    let model = models::build(&config, FloatType::F32, num_shards).map_err(|error| text(&error))?;
    let graphs = ModelGraphs::of(&model).map_err(|error| text(&error))?;
    let counted = (graphs.weights_bytes(), graphs.decoder.multiply_adds());
    let limits = [config.vocab_size(), config.max_position_embeddings()];
    limits.into_iter().try_for_each(|limit| limit.map(drop)).map_err(|error| text(&error))?;
    if counted.0 == 0 { Err("a model without weights".to_owned()) } else { Ok(()) }
}

/// Returns one `config.json` of each architecture.
fn configs() -> Vec<Value> {
    let names = checkpoints::names("families").into_iter();
    let paths = names.map(|name| checkpoints::tracked(&format!("families/{name}/config.json")));
    let mut known = BTreeSet::new();
    let read = |path: PathBuf| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    paths.map(read).filter(|config| known.insert(config["architectures"].to_string())).collect()
}

#[test]
fn any_value_of_any_key_is_a_model_or_a_sentence() {
    let numbers = [json!(0), json!(1), json!(3), json!(1_000_000_000_000_u64), json!(u64::MAX), json!(-1)];
    let others = [json!(0.5), json!(1e300), json!("x"), json!([]), json!([1e18]), json!({}), json!({"factor": 1e300})];
    let configs = configs();
    assert!(configs.len() > 20, "{} architectures", configs.len());
    for config in configs {
        assert_eq!(build(&config, 1), Ok(()), "{config}");
        let keys_at =
            |path: &str| config.pointer(path).and_then(Value::as_object).into_iter().flat_map(|keys| keys.keys());
        let outer = keys_at("").map(|key| format!("/{key}"));
        for path in outer.chain(keys_at("/text_config").map(|key| format!("/text_config/{key}"))) {
            for value in numbers.iter().chain(&others) {
                let mut changed = config.clone();
                *changed.pointer_mut(&path).unwrap() = value.clone();
                if let Err(message) = build(&changed, 2) {
                    assert!(message.len() < 1000, "{path} is {value}: {message}");
                }
            }
        }
    }
}

/// The log of a published model names no key of its config.json.
#[test]
fn published_configs_have_no_unknown_key() {
    let mut unread = Vec::new();
    for entry in std::fs::read_dir(fixture("configs")).unwrap() {
        let path = entry.unwrap().path();
        let config = Config::parse(&std::fs::read(path.join("config.json")).unwrap()).unwrap();
        models::build(&config, FloatType::Bf16, 1).unwrap();
        unread.extend(config.unread().into_iter().map(|key| format!("{}: {key}", path.display())));
    }
    assert_eq!(unread, Vec::<String>::new());
}

/// Sets every key at any depth whose name is in `keys` and whose value is a text to `value`, and returns their number.
fn set_texts(json: &mut Value, keys: &[&str], value: &str) -> usize {
    let Value::Object(object) = json else { return 0 };
    let mut count = 0;
    for (key, old) in object {
        if keys.contains(&key.as_str()) && old.is_string() {
            *old = value.into();
            count += 1;
        } else if key != "vision_config" {
            count += set_texts(old, keys, value);
        }
    }
    count
}

#[test]
fn names_that_no_family_knows_are_refused() {
    let activations = ["activation", "activation_function", "hidden_act", "hidden_activation"];
    let mut accepted = Vec::new();
    for config in configs() {
        for keys in [&activations[..], &["rope_type"]] {
            let mut changed = config.clone();
            if set_texts(&mut changed, keys, "unheard-of") == 0 {
                continue;
            }
            match build(&changed, 1) {
                Err(message) if message.contains("unheard-of") => {}
                // Hunyuan has a type of its own; another type may not have its `alpha`.
                Err(message) if message.contains("rope_parameters.alpha is") => {}
                other => accepted.push(format!("{}, {keys:?}: {other:?}", config["architectures"])),
            }
        }
    }
    assert!(accepted.is_empty(), "{}", accepted.join("\n"));
}

#[test]
fn sizes_that_no_model_has_are_named() {
    let llama = configs().into_iter().find(|config| config["model_type"] == "granite").unwrap();
    for (key, value, expected) in [
        (
            "num_hidden_layers",
            1_000_000_000_000,
            "num_hidden_layers is 1000000000000, expected a positive integer up to 4096",
        ),
        ("num_hidden_layers", 1_000_000, "num_hidden_layers is 1000000, expected a positive integer up to 4096"),
        ("hidden_size", 1 << 40, "hidden_size is 1099511627776, expected a positive integer up to 1048576"),
        ("num_attention_heads", 49, "num_attention_heads is 49, expected at most hidden_size"),
        ("num_attention_heads", 0, "num_attention_heads is 0, expected a positive integer up to 65536"),
        ("vocab_size", 1 << 31, "vocab_size is 2147483648, expected a positive integer up to 2097152"),
        ("max_position_embeddings", 1_u64 << 40, "is 1099511627776, expected a positive integer up to 2147483647"),
    ] {
        let mut config = llama.clone();
        config[key] = value.into();
        let message = build(&config, 1).unwrap_err();
        assert!(message.starts_with("config.json: ") && message.contains(expected), "{message}");
    }
}

/// Overwrites a few bytes in the headers of many copies of each file.
#[test]
fn any_head_of_a_gguf_file_is_a_model_or_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let mut numbers = fastrand::Rng::with_seed(7);
    let (mut num_models, mut num_sentences) = (0, 0);
    for entry in std::fs::read_dir(fixture("gguf")).unwrap() {
        let whole = std::fs::read(entry.unwrap().path().join("model.gguf")).unwrap();
        std::fs::write(&path, &whole).unwrap();
        let head_len = Gguf::open(&path).unwrap().files[0].data_start as usize;
        for round in 0..150 {
            let mut bytes = whole.clone();
            // The metadata of the model is at the start of a header, and the names and shapes of tensors are at its
            // end.
            let places = if round % 2 == 0 { 0..head_len.min(2000) } else { head_len.saturating_sub(3000)..head_len };
            for _ in 0..numbers.usize(1..4) {
                bytes[numbers.usize(places.clone())] = [0, 1, 0xff, numbers.u8(..)][numbers.usize(..4)];
            }
            std::fs::write(&path, bytes).unwrap();
            let result = Gguf::open(&path).map_err(|error| error.to_string()).and_then(|gguf| {
                let factors = weights::rope_factors(&gguf).map_err(|error| error.to_string())?;
                let config = models::gguf_config(&gguf, &factors).map_err(|error| error.to_string())?;
                Checkpoint::of_gguf(&gguf).map_err(|error| error.to_string())?;
                build(&Value::Object(config), 1)
            });
            match result {
                Ok(()) => num_models += 1,
                Err(_) => num_sentences += 1,
            }
        }
    }
    assert!(num_models > 50 && num_sentences > 50, "{num_models} models, {num_sentences} sentences");
}
