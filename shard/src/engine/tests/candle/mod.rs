//! Models of candle-transformers beside ours: another implementation in Rust reads the same tiny checkpoints.
//!
//! [`Row`] is one checkpoint that candle and the CPU backend read. Both compute prompts and [`NUM_TOKENS`] tokens after
//! each, and the log-probabilities of the whole vocabulary are compared. `rows` is the table, `families` loads candle's
//! models, `gguf` has the rows with GGUF files, and `modules` the modules of candle without a row. `docs/oracle.md`
//! explains every row that does not agree.

mod families;
mod gguf;
mod modules;
mod rows;

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use proto::{SampledToken, SamplingParams};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ranks::Engines;
use super::references::{Reference, token_ids};
use super::{Rig, args, fixture};
use crate::args::Dtype;

/// The largest difference of a log-probability, as a share of the largest absolute logit of the row.
const TOLERANCE: f64 = 2e-4;
/// The number of tokens that are sampled after each prompt.
const NUM_TOKENS: usize = 9;

/// A loaded model of candle: takes the next tokens `[1, length]` and the number of tokens before them, and returns
/// logits, the last of which are those of the last token.
type Forward = Box<dyn FnMut(&Tensor, usize) -> candle_core::Result<Tensor>>;

/// Loads a model of candle.
type Load = fn(&Given) -> candle_core::Result<Forward>;

/// The checkpoint of a row.
struct Given {
    /// The configuration in the form of transformers 4, with [`Row::candle`].
    config: Value,
    tensors: HashMap<String, Tensor>,
}

impl Given {
    fn config<T: DeserializeOwned>(&self) -> candle_core::Result<T> {
        serde_json::from_value(self.config.clone()).map_err(candle_core::Error::wrap)
    }

    fn weights(&self) -> VarBuilder<'static> {
        VarBuilder::from_tensors(self.tensors.clone(), DType::F32, &Device::Cpu)
    }
}

/// The expected result of a comparison.
#[derive(Clone, Copy)]
enum Expected {
    /// All log-probabilities are equal within [`TOLERANCE`].
    Agrees,
    /// Some log-probabilities differ by more than [`TOLERANCE`].
    Differs,
    /// Candle returns an error that contains this text.
    Refuses(&'static str),
}

/// One checkpoint that candle reads too.
#[derive(Clone, Copy)]
struct Row {
    /// The module in `candle_transformers::models`.
    module: &'static str,
    load: Load,
    /// A folder in `integration-tests/fixtures/families`.
    fixture: &'static str,
    /// Changes of config.json for both, as JSON. `null` removes a key.
    both: &'static str,
    /// Changes of config.json for candle: for example, a key that the fixture has under another name. `head` names
    /// embeddings that are the head too.
    candle: &'static str,
    expected: Expected,
}

impl Row {
    const fn both(self, both: &'static str) -> Self {
        Self { both, ..self }
    }

    const fn candle(self, candle: &'static str) -> Self {
        Self { candle, ..self }
    }

    /// Returns the folder of the checkpoint below `integration-tests/fixtures`.
    fn folder(&self) -> String {
        format!("families/{}", self.fixture)
    }
}

/// Returns a row without changes of config.json.
const fn row(module: &'static str, load: Load, fixture: &'static str, expected: Expected) -> Row {
    Row { module, load, fixture, both: "{}", candle: "{}", expected }
}

/// Puts `changes` into `config`: objects are merged, `null` removes a key, and anything else replaces.
fn patch(config: &mut Value, changes: Value) {
    match (config, changes) {
        (Value::Object(config), Value::Object(changes)) => {
            for (key, change) in changes {
                if change.is_null() {
                    config.remove(&key);
                } else {
                    patch(config.entry(key).or_insert(Value::Null), change);
                }
            }
        }
        (config, changes) => *config = changes,
    }
}

/// Puts the rotary parameters of transformers 5 where transformers 4 and candle have them.
fn to_older_form(config: &mut Value) {
    let Some(parameters) = config.get("rope_parameters").cloned() else { return };
    let (global, local) = (parameters.get("full_attention"), parameters.get("sliding_attention"));
    let parameters = global.unwrap_or(&parameters).as_object().unwrap();
    let object = config.as_object_mut().unwrap();
    for key in ["rope_theta", "partial_rotary_factor"] {
        object.extend(parameters.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    object.extend(local.map(|local| ("rope_local_base_freq".to_owned(), local["rope_theta"].clone())));
    if parameters["rope_type"] != "default" {
        let mut scaling = parameters.clone();
        scaling.insert("type".to_owned(), parameters["rope_type"].clone());
        object.insert("rope_scaling".to_owned(), Value::Object(scaling));
    }
}

/// Writes the checkpoint of `row` with its changed configuration into `folder`, and returns candle's view of it.
fn prepare(row: &Row, folder: &Path) -> Given {
    let from = fixture(&row.folder());
    let mut config: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    patch(&mut config, serde_json::from_str(row.both).unwrap());
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::copy(from.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    to_older_form(&mut config);
    if let Some(text) = config.get_mut("text_config") {
        to_older_form(text);
    }
    patch(&mut config, serde_json::from_str(row.candle).unwrap());
    let mut tensors = candle_core::safetensors::load(from.join("model.safetensors"), &Device::Cpu).unwrap();
    if let Some(head) = config["head"].as_str() {
        tensors.insert("lm_head.weight".to_owned(), tensors[&format!("{head}.weight")].clone());
    }
    Given { config, tensors }
}

/// Returns the largest difference between the log-probabilities of `token` and those of the last of candle's `logits`,
/// as a share of the largest absolute logit.
fn difference(token: &SampledToken, logits: &Tensor) -> f64 {
    let logits: Vec<f64> = logits.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap();
    let ids = token.top_token_ids();
    let logits = &logits[logits.len() - ids.len()..];
    assert!(logits.iter().all(|logit| logit.is_finite()), "{logits:?}");
    let largest = logits.iter().fold(0.0_f64, |largest, logit| largest.max(logit.abs()));
    let log_sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
    let off = |(id, logprob): (&u32, &f32)| (f64::from(*logprob) - (logits[*id as usize] - log_sum)).abs();
    ids.iter().zip(token.top_logprobs()).map(off).fold(0.0, f64::max) / largest
}

/// Returns the largest [`difference`] after the prompts of a folder and the tokens that this server samples after them.
/// This server loads `model_id`.
fn compare(model_id: &Path, folder: &str, load: impl Fn() -> candle_core::Result<Forward>) -> candle_core::Result<f64> {
    let mut args = args(model_id.to_str().unwrap(), devices::Device::CPU);
    args.model.dtype = Some(Dtype::Float32);
    let engine = Engines::load(&[args]).unwrap();
    let params = SamplingParams { top_n_tokens: engine.info().vocab_size, ..SamplingParams::greedy() };
    let mut rig = Rig::warm_for(engine, 1);
    let mut largest = 0.0_f64;
    for prompt in &Reference::read(folder).prompts {
        let mut next = token_ids(&prompt["prompt"]);
        let mut forward = load()?;
        let mut position = 0;
        for token in rig.generate(0, &next.clone(), params.clone(), NUM_TOKENS) {
            let logits = forward(&Tensor::new(next.as_slice(), &Device::Cpu)?.unsqueeze(0)?, position)?;
            largest = largest.max(difference(&token, &logits));
            position += next.len();
            next = vec![token.token_id];
        }
    }
    Ok(largest)
}

/// Returns why `result` is not as expected, or `None`.
fn complaint(expected: Expected, result: &candle_core::Result<f64>) -> Option<String> {
    match (expected, result) {
        (Expected::Agrees, Ok(difference)) => {
            (*difference > TOLERANCE).then(|| format!("the difference is {difference:.1e}"))
        }
        (Expected::Differs, Ok(difference)) => {
            (*difference <= TOLERANCE).then(|| format!("the difference is {difference:.1e}"))
        }
        (Expected::Refuses(part), Ok(difference)) => {
            Some(format!("the difference is {difference:.1e}, but candle should refuse: {part}"))
        }
        (Expected::Refuses(part), Err(error)) => {
            let message = error.to_string();
            (!message.contains(part)).then(|| format!("candle's error lacks {part:?}: {message}"))
        }
        (Expected::Agrees | Expected::Differs, Err(error)) => Some(format!("candle's error is {error}")),
    }
}
