//! Typed reading of `config.json` and `generation_config.json`, with errors that name the key of a wrong value and the
//! allowed values.
//!
//! Entry point: [`Config`]. A key that is null counts as absent. This file interprets only a few keys that are common
//! to all models; other files of this folder interpret the rest.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use numbers::FloatType;
use serde_json::{Map, Value};

use super::{composite, rope_config};
use crate::graph::GraphError;
use crate::layers::HeadsError;

const CONFIG: &str = "config.json";
/// The key that says if the embedding table is also the matrix of the output head.
const TIE: &str = "tie_word_embeddings";
/// The keys of rotary parameters. The first wins.
const ROTARY: [&str; 2] = ["rope_parameters", "rope_scaling"];
/// Keys, each with the name that older model families use for the same value.
const OTHER_NAMES: [(&str, &str); 15] = [
    ("hidden_size", "d_model"),
    ("hidden_size", "n_embd"),
    ("hidden_size", "n_embed"),
    ("intermediate_size", "ffn_dim"),
    ("max_position_embeddings", "max_seq_len"),
    ("max_position_embeddings", "n_positions"),
    ("max_position_embeddings", "seq_length"),
    ("num_attention_heads", "n_head"),
    ("num_attention_heads", "n_heads"),
    ("num_attention_heads", "num_heads"),
    ("num_hidden_layers", "n_layer"),
    ("num_hidden_layers", "n_layers"),
    ("num_hidden_layers", "num_layers"),
    ("partial_rotary_factor", "rotary_pct"),
    ("rope_theta", "rotary_emb_base"),
];

/// The maximum accepted sizes, several times the sizes of the largest existing models. With these sizes, the number of
/// bytes of a weight does not overflow.
const MAX_SIZES: [(&str, usize); 24] = [
    ("ffn_hidden_size", 1 << 26),
    ("global_head_dim", 1 << 16),
    ("head_dim", 1 << 16),
    ("hidden_size", 1 << 20),
    ("hidden_size_per_layer_input", 1 << 16),
    ("intermediate_size", 1 << 26),
    ("intermediate_size_mlp", 1 << 26),
    ("moe_intermediate_size", 1 << 26),
    ("moe_num_experts", 1 << 14),
    ("moe_num_shared_experts", 1 << 10),
    ("n_inner", 1 << 26),
    ("n_routed_experts", 1 << 14),
    ("n_shared_experts", 1 << 10),
    ("num_attention_heads", 1 << 16),
    ("num_experts", 1 << 14),
    ("num_global_key_value_heads", 1 << 16),
    ("num_hidden_layers", 1 << 12),
    ("num_key_value_heads", 1 << 16),
    ("num_local_experts", 1 << 14),
    ("num_shared_experts", 1 << 10),
    ("shared_expert_intermediate_size", 1 << 26),
    ("shared_intermediate_size", 1 << 26),
    ("vocab_size", proto::MAX_VOCAB_SIZE),
    ("vocab_size_per_layer_input", proto::MAX_VOCAB_SIZE),
];
/// The maximum accepted size of all other keys.
const MAX_SIZE: usize = i32::MAX as usize;

const GENERATION_CONFIG: &str = "generation_config.json";

/// The error of a configuration from which no model can be built.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{file} is not valid JSON: {source}")]
    Json { file: &'static str, source: serde_json::Error },
    #[error("{file} is not a JSON object")]
    NotAnObject { file: &'static str },
    #[error("config.json has no {key}")]
    MissingKey { key: String },
    #[error("{file}: {key} is {value}, expected {expected}")]
    Value { file: &'static str, key: String, value: String, expected: String },
    #[error("config.json: {key} is {value}; only {supported} is supported")]
    Unsupported { key: String, value: String, supported: String },
    #[error("config.json: {0}")]
    Heads(#[from] HeadsError),
    #[error("metadata of the GGUF file: {key} is {value}; only {supported} is supported")]
    Metadata { key: String, value: String, supported: String },
    #[error("architecture {architecture} is not supported; {num_known} others are, such as {example} (docs/models.md)")]
    UnknownArchitecture { architecture: String, num_known: usize, example: &'static str },
    #[error("config.json does not describe a model: {0}")]
    Graph(#[from] GraphError),
}

/// A configuration file, or an object in it.
#[derive(Debug, Clone)]
pub struct Config {
    /// The prefix of the object's keys, such as `rope_scaling.`.
    prefix: String,
    /// Keys without the prefix: those that a text model has from the composite model around it.
    outer: Vec<&'static str>,
    pub(super) keys: Map<String, Value>,
    /// The keys that were read from this object or from a copy of it.
    pub(super) read_keys: ReadKeys,
}

/// The names of keys; all copies are the same set.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadKeys(Arc<Mutex<BTreeSet<String>>>);

impl ReadKeys {
    fn add(&self, key: &str) {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !keys.contains(key) {
            keys.insert(key.to_owned());
        }
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }
}

impl Config {
    /// Reads `config.json`. Of a composite model, the result has the keys of the text model.
    ///
    /// # Errors
    /// When the file is not a JSON object, or a composite has no text model of the kind that is supported.
    pub fn parse(bytes: &[u8]) -> Result<Self, ModelError> {
        let keys = parse_object(CONFIG, bytes)?;
        let whole = Self { prefix: String::new(), outer: Vec::new(), keys, read_keys: ReadKeys::default() };
        let Some(composite) = whole.architecture().ok().and_then(composite::find) else { return Ok(whole) };
        let composite::TextKeys { prefix, keys, outer, defaults } = composite.text_keys(&whole, &whole.keys)?;
        let config = Self { prefix, outer, keys, read_keys: ReadKeys::default() };
        // Keys of the whole model and defaults of transformers count as read.
        config.outer.iter().chain(&defaults).for_each(|key| config.read_keys.add(key));
        Ok(config)
    }

    /// Returns the configuration in the object `keys`, which is the value of `key` in this one.
    pub(super) fn nested(&self, key: &str, keys: Map<String, Value>) -> Self {
        let prefix = format!("{}.", self.path(key));
        Self { prefix, outer: Vec::new(), keys, read_keys: ReadKeys::default() }
    }

    /// Returns the names of the parts of a composite's checkpoint that are not its text model; `None` for a model that
    /// has only text.
    pub fn towers(&self) -> Option<&'static [&'static str]> {
        Some(composite::find(self.architecture().ok()?)?.towers)
    }

    /// Returns this configuration of a composite for a checkpoint that has or lacks an output head. As in transformers,
    /// a head in the checkpoint is used whatever `tie_word_embeddings` is. Without a head, the embedding table is the
    /// head if the key is missing.
    #[must_use]
    pub fn with_head(mut self, has_head: bool) -> Self {
        if has_head || !self.has(TIE) {
            self.keys.insert(TIE.to_owned(), Value::Bool(!has_head));
        }
        self
    }

    /// Returns this configuration without `keys`.
    pub(super) fn without(&self, keys: &[&str]) -> Self {
        let mut config = self.clone();
        config.keys.retain(|key, _| !keys.contains(&key.as_str()));
        config
    }

    /// Returns this configuration with `default` at `key` if the key and its older name are absent.
    pub(super) fn or_default(&self, key: &str, default: impl Into<Value>) -> Self {
        let mut config = self.clone();
        if !self.has(key) {
            config.keys.insert(key.to_owned(), default.into());
        }
        config
    }

    /// Returns this configuration with `value` at `key` of its rotary parameters.
    pub(super) fn with_rotary_key(&self, key: &str, value: impl Into<Value>) -> Result<Self, ModelError> {
        let mut parameters = self.rotary()?.map(|rotary| rotary.keys).unwrap_or_default();
        parameters.insert(key.to_owned(), value.into());
        Ok(self.with_rotary(Value::Object(parameters)))
    }

    /// Returns this configuration without the keys `unused` of its rotary parameters.
    pub(super) fn without_rotary_keys(&self, unused: &[&str]) -> Self {
        let mut config = self.clone();
        for key in ROTARY {
            if let Some(Value::Object(parameters)) = config.keys.get_mut(key) {
                parameters.retain(|key, _| !unused.contains(&key.as_str()));
            }
        }
        config
    }

    /// Returns the object with the rotary parameters, `rope_parameters` or `rope_scaling`; `None` if there is neither.
    pub(super) fn rotary(&self) -> Result<Option<Self>, ModelError> {
        for key in ROTARY {
            if let Some(object) = self.object(key)? {
                return Ok(Some(self.nested(key, object.clone())));
            }
        }
        Ok(None)
    }

    /// Returns this configuration with these rotary parameters instead of its own.
    pub(super) fn with_rotary(&self, parameters: Value) -> Self {
        let mut config = self.clone();
        let [key, other] = ROTARY;
        config.keys.insert(key.to_owned(), parameters);
        config.keys.remove(other);
        config
    }

    /// Returns the first entry of `architectures`.
    pub fn architecture(&self) -> Result<&str, ModelError> {
        let architectures = self.value("architectures").ok_or_else(|| self.missing("architectures"))?;
        let first = architectures.as_array().and_then(|names| names.first()).and_then(Value::as_str);
        first.ok_or_else(|| self.wrong("architectures", architectures, "a list with the name of a class"))
    }

    /// Returns the number of tokens in the vocabulary, `vocab_size`.
    pub fn vocab_size(&self) -> Result<usize, ModelError> {
        self.size("vocab_size")
    }

    /// Returns the length of the longest sequence that the model supports, in tokens.
    pub fn max_position_embeddings(&self) -> Result<usize, ModelError> {
        rope_config::longest(self, self.size("max_position_embeddings")?)
    }

    /// Returns the type of the weights, the value of `dtype` or of its older name `torch_dtype`; `None` if the file has
    /// neither key.
    pub fn dtype(&self) -> Result<Option<FloatType>, ModelError> {
        let key = if self.value("dtype").is_some() { "dtype" } else { "torch_dtype" };
        let Some(name) = self.text(key)? else { return Ok(None) };
        match name.strip_prefix("torch.").unwrap_or(name) {
            "float32" => Ok(Some(FloatType::F32)),
            "float16" => Ok(Some(FloatType::F16)),
            "bfloat16" => Ok(Some(FloatType::Bf16)),
            _ => Err(self.invalid(key, Value::from(name), "float32, float16 or bfloat16")),
        }
    }

    /// Returns the tokens that end a sequence: `eos_token_id` of `generation_config.json`, or of this file if that has
    /// none. The value in the file is a number or a list of numbers. Returns an empty list if neither file has the key.
    ///
    /// # Errors
    /// When the value is malformed or names a token outside the vocabulary, `vocab_size` is missing or malformed, or
    /// `generation_config` is not a JSON object.
    pub fn eos_token_ids(&self, generation_config: Option<&[u8]>) -> Result<Vec<u32>, ModelError> {
        const EOS: &str = "eos_token_id";
        let generation = match generation_config {
            Some(bytes) => parse_object(GENERATION_CONFIG, bytes)?,
            None => Map::new(),
        };
        let listed = generation.get(EOS).filter(|value| !value.is_null());
        let (file, key) = match listed {
            Some(_) => (GENERATION_CONFIG, EOS.to_owned()),
            None => (CONFIG, self.path(EOS)),
        };
        let Some(value) = listed.or_else(|| self.value(EOS)) else {
            return Ok(Vec::new());
        };
        let vocab_size = self.vocab_size()? as u64;
        let ids = value.as_array().map_or_else(|| std::slice::from_ref(value), Vec::as_slice);
        let id = |id: &Value| {
            let id = id.as_u64().filter(|id| *id < vocab_size).and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| ModelError::Value {
                file,
                key: key.clone(),
                value: value.to_string(),
                expected: format!("token ids below {vocab_size}"),
            })
        };
        ids.iter().map(id).collect()
    }

    /// Returns a positive integer, which is required.
    pub(super) fn size(&self, key: &str) -> Result<usize, ModelError> {
        self.optional_size(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns a positive integer, or `default` if it is absent.
    pub(super) fn size_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        Ok(self.optional_size(key)?.unwrap_or(default))
    }

    /// Returns the positive integer at `key`, or the one that the list at `key` repeats, or `default` if it is absent.
    pub(super) fn same_size_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        let most = max_size(key);
        let size = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|size| (1..=most).contains(size));
        let same = |value: &Value| match value.as_array().map(Vec::as_slice) {
            Some([first, rest @ ..]) => size(first).filter(|_| rest.iter().all(|other| other == first)),
            Some([]) => None,
            None => size(value),
        };
        let expected = format!("a positive integer up to {most}, or a list that repeats one");
        Ok(self.read(key, &expected, same)?.unwrap_or(default))
    }

    /// Returns an integer that may be 0, or `default` if it is absent.
    pub(super) fn count_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        let most = max_size(key);
        let count = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|count| *count <= most);
        Ok(self.read(key, &format!("an integer from 0 to {most}"), count)?.unwrap_or(default))
    }

    /// Returns the number at `key`, or `None` if it is absent.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.read(key, "a number", Value::as_f64)
    }

    /// Returns a number, which is required.
    pub(super) fn required_number(&self, key: &str) -> Result<f64, ModelError> {
        self.number(key)?.ok_or_else(|| self.missing(key))
    }

    /// Returns a number, or `default` if it is absent.
    pub(super) fn number_or(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        Ok(self.number(key)?.unwrap_or(default))
    }

    /// Returns the epsilon of a norm, or `default` if it is absent. A negative one makes NaN of small vectors, and one
    /// above 1 makes nearly nothing of all vectors.
    pub(super) fn epsilon_or(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        let epsilon = self.number_or(key, default)?;
        if !(0.0..=1.0).contains(&epsilon) {
            return Err(self.invalid(key, format!("{epsilon:?}"), "a number from 0 to 1"));
        }
        Ok(epsilon)
    }

    /// Returns a boolean, or `default` if it is absent.
    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        Ok(self.read(key, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// Returns the string at `key`, or `None` if it is absent.
    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.read(key, "a string", Value::as_str)
    }

    /// Returns the object at `key`, or `None` if it is absent.
    pub(super) fn object(&self, key: &str) -> Result<Option<&Map<String, Value>>, ModelError> {
        self.read(key, "an object", Value::as_object)
    }

    /// True if the key has a value other than null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Returns a list of numbers, which is required.
    pub(super) fn numbers(&self, key: &str) -> Result<Vec<f64>, ModelError> {
        let numbers = |value: &Value| value.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>();
        self.read(key, "a list of numbers", numbers)?.ok_or_else(|| self.missing(key))
    }

    /// Returns the list of strings at `key`, or `None` if it is absent.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, ModelError> {
        self.read(key, "a list of strings", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// Refuses every key that is not in `known` and has a value other than null.
    pub(super) fn require_known(&self, known: &[&str]) -> Result<(), ModelError> {
        let other = self.keys.iter().find(|(key, value)| !value.is_null() && !known.contains(&key.as_str()));
        other.map_or(Ok(()), |(key, value)| Err(self.unsupported(key, value, "null")))
    }

    /// Returns the path of a key of this object, for messages.
    pub(super) fn path(&self, key: &str) -> String {
        match self.outer.contains(&key) {
            true => key.to_owned(),
            false => format!("{}{key}", self.prefix),
        }
    }

    /// Refuses every key of `fixed` whose value is neither null nor the value next to the key in `fixed`, which is JSON
    /// text.
    pub(super) fn require_fixed(&self, fixed: &[(&str, &str)]) -> Result<(), ModelError> {
        for (key, supported) in fixed {
            let Some(value) = self.value(key) else { continue };
            let is_same_number = value.as_f64().is_some_and(|value| supported.parse() == Ok(value));
            let value = value.to_string();
            if !is_same_number && value != *supported {
                return Err(self.unsupported(key, &value, supported));
            }
        }
        Ok(())
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let most = max_size(key);
        let size = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|size| (1..=most).contains(size));
        self.read(key, &format!("a positive integer up to {most}"), size)
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.wrong(key, value, expected))
    }

    fn value(&self, key: &str) -> Option<&Value> {
        let here = |key: &str| {
            let value = self.keys.get(key).filter(|value| !value.is_null());
            value.inspect(|_| self.read_keys.add(key))
        };
        let other_name = || OTHER_NAMES.iter().filter(|(name, _)| *name == key).find_map(|(_, other)| here(other));
        here(key).or_else(other_name)
    }

    pub(super) fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingKey { key: self.path(key) }
    }

    pub(super) fn unsupported(&self, key: &str, value: impl fmt::Display, supported: &str) -> ModelError {
        ModelError::Unsupported { key: self.path(key), value: value.to_string(), supported: supported.to_owned() }
    }

    fn wrong(&self, key: &str, value: &Value, expected: &str) -> ModelError {
        self.invalid(key, value, expected)
    }

    /// Returns the error of a key that has the wrong value.
    pub(super) fn invalid(&self, key: &str, value: impl fmt::Display, expected: &str) -> ModelError {
        let (key, value, expected) = (self.path(key), value.to_string(), expected.to_owned());
        ModelError::Value { file: CONFIG, key, value, expected }
    }
}

fn max_size(key: &str) -> usize {
    MAX_SIZES.iter().find(|(name, _)| *name == key).map_or(MAX_SIZE, |(_, most)| *most)
}

fn parse_object(file: &'static str, bytes: &[u8]) -> Result<Map<String, Value>, ModelError> {
    let value: Value = serde_json::from_slice(bytes).map_err(|source| ModelError::Json { file, source })?;
    match value {
        Value::Object(keys) => Ok(keys),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(ModelError::NotAnObject { file })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> Config {
        Config::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn an_epsilon_is_small_and_not_negative() {
        let epsilon = |value: &str| config(&format!(r#"{{"rms_norm_eps": {value}}}"#)).epsilon_or("rms_norm_eps", 1e-6);
        assert_eq!(["null", "0", "1e-5", "1"].map(|value| epsilon(value).unwrap()), [1e-6, 0.0, 1e-5, 1.0]);
        for value in ["-1", "1.5", "1e300"] {
            let error = epsilon(value).unwrap_err().to_string();
            assert!(error.starts_with("config.json: rms_norm_eps is "), "{error}");
            assert!(error.ends_with(", expected a number from 0 to 1"), "{error}");
        }
    }

    #[test]
    fn eos_ids_come_from_the_generation_config_first() {
        let config = config(r#"{"vocab_size": 100, "eos_token_id": 5}"#);
        let ids = |json: &str| config.eos_token_ids(Some(json.as_bytes())).map_err(|error| error.to_string());
        assert_eq!(ids(r#"{"eos_token_id": [7, 8]}"#), Ok(vec![7, 8]));
        assert_eq!(ids(r#"{"eos_token_id": 9}"#), Ok(vec![9]));
        assert_eq!(ids("{}"), Ok(vec![5]));
        assert_eq!(config.eos_token_ids(None).unwrap(), [5]);
        assert_eq!(
            ids(r#"{"eos_token_id": [100]}"#),
            Err("generation_config.json: eos_token_id is [100], expected token ids below 100".into())
        );
    }

    #[test]
    fn both_names_of_the_dtype_are_read() {
        assert_eq!(config(r#"{"torch_dtype": "bfloat16"}"#).dtype().unwrap(), Some(FloatType::Bf16));
        assert_eq!(config(r#"{"dtype": "float16"}"#).dtype().unwrap(), Some(FloatType::F16));
        assert_eq!(config("{}").dtype().unwrap(), None);
        let error = config(r#"{"dtype": "float8"}"#).dtype().unwrap_err().to_string();
        insta::assert_snapshot!(error, @r#"config.json: dtype is "float8", expected float32, float16 or bfloat16"#);
    }

    #[test]
    fn values_of_the_wrong_kind_are_named() {
        let config = config(r#"{"vocab_size": -1, "architectures": "x", "layers": 2.5}"#);
        let message = config.vocab_size().unwrap_err().to_string();
        insta::assert_snapshot!(message, @"config.json: vocab_size is -1, expected a positive integer up to 2097152");
        assert!(config.architecture().unwrap_err().to_string().contains("architectures is \"x\""));
        assert!(config.size("layers").is_err());
        insta::assert_snapshot!(config.size("nothing").unwrap_err(), @"config.json has no nothing");
        assert!(matches!(Config::parse(b"[]"), Err(ModelError::NotAnObject { .. })));
        assert!(matches!(Config::parse(b"{"), Err(ModelError::Json { .. })));
    }

    #[test]
    fn a_default_stands_for_an_absent_key_only() {
        let number = |json: &str| config(json).or_default("rope_theta", 2.5).number("rope_theta").unwrap();
        assert_eq!(["{}", r#"{"rope_theta": null}"#].map(number), [Some(2.5); 2]);
        assert_eq!([r#"{"rope_theta": 7}"#, r#"{"rotary_emb_base": 7}"#].map(number), [Some(7.0); 2]);
    }

    #[test]
    fn fixed_keys_accept_their_value_and_null() {
        let fixed = [("a", "1"), ("b", "null"), ("c", "false")];
        assert!(config(r#"{"a": 1.0, "b": null, "c": false}"#).require_fixed(&fixed).is_ok());
        assert!(config("{}").require_fixed(&fixed).is_ok());
        assert!(config(r#"{"c": true}"#).require_fixed(&fixed).is_err());
    }
}
