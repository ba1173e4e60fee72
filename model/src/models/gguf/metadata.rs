//! The values of a GGUF file's metadata and tensors from which keys of config.json follow.
//!
//! Entry point: [`Metadata`].

use model_files::{Gguf, GgufValue, TensorInfo};
use serde_json::{Map, Value, json};

use super::rows::Origin;
use crate::models::ModelError;
use crate::weights::RopeFactors;

const EOS_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// The header of a file. Keys are without the name of the architecture.
#[derive(Clone, Copy)]
pub(super) struct Metadata<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) architecture: &'a str,
    pub(super) factors: &'a RopeFactors,
}

impl<'a> Metadata<'a> {
    pub(super) fn key(self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn count(self, name: &str) -> Option<u64> {
        self.gguf.count(&self.key(name))
    }

    pub(super) fn number(self, name: &str) -> Option<f64> {
        self.gguf.number(&self.key(name))
    }

    /// Returns the list at a key.
    pub(super) fn list(self, name: &str) -> Option<&'a [GgufValue]> {
        self.gguf.list(&self.key(name))
    }

    /// Returns a value as JSON. A list of equal values is one value.
    pub(super) fn json(self, name: &str) -> Option<Value> {
        let value = match self.gguf.get(&self.key(name))? {
            GgufValue::List(values) => {
                let (first, rest) = values.split_first()?;
                if rest.iter().any(|value| value != first) {
                    return values.iter().map(scalar).collect::<Option<Vec<_>>>().map(Value::from);
                }
                first
            }
            value => value,
        };
        scalar(value)
    }

    /// Returns the value of a key of config.json; `None` if the metadata has no value for it.
    pub(super) fn value(self, origin: Origin) -> Option<Value> {
        match origin {
            Origin::Key("block_count") => self.num_layers().map(Value::from),
            Origin::Key(name) => self.json(name),
            Origin::Or(name, json) => self.json(name).or_else(|| serde_json::from_str(json).ok()),
            Origin::Positive(name) => self.json(name).filter(|value| value.as_u64() != Some(0)),
            Origin::Fixed(json) => serde_json::from_str(json).ok(),
            Origin::Tensor(name) => Some(json!(self.has_inner(name))),
            Origin::FirstSparse => Some(json!(self.layers_with("ffn_gate_inp.weight").into_iter().min())),
            Origin::LastSparse => Some(json!(self.layers_with("ffn_gate_inp.weight").into_iter().max())),
            Origin::Rows(name) => Some(json!(self.num_rows(name))),
            Origin::Rotated => self.rotated().map(Value::from),
            Origin::Windows => self.windows().map(Value::from),
        }
    }

    /// Returns the tensor with this name.
    pub(super) fn tensor(self, name: &str) -> Option<&'a TensorInfo> {
        self.gguf.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// True if a layer has the tensor `name`. A bias of queries may be part of that of queries, keys and values.
    pub(super) fn has_inner(self, name: &str) -> bool {
        let fused = if name == "attn_q.bias" { "attn_qkv.bias" } else { name };
        let is_it = |tensor: &TensorInfo| layer_of(tensor).is_some_and(|(_, inner)| inner == name || inner == fused);
        self.gguf.tensors.iter().any(is_it)
    }

    /// Returns the indices of the layers that have the tensor `name`.
    pub(super) fn layers_with(self, name: &str) -> Vec<u64> {
        let layers = self.gguf.tensors.iter().filter_map(layer_of);
        layers.filter(|(_, inner)| *inner == name).filter_map(|(layer, _)| layer.parse().ok()).collect()
    }

    /// Returns the number of rows of a matrix of the first layer.
    pub(super) fn num_rows(self, name: &str) -> Option<usize> {
        self.tensor(&format!("blk.0.{name}"))?.shape.first().copied()
    }

    /// Returns the number of layers without those that predict further tokens.
    pub(super) fn num_layers(self) -> Option<u64> {
        let extra = self.count("nextn_predict_layers").unwrap_or(0);
        Some(self.count("block_count")?.saturating_sub(extra))
    }

    /// Returns the type of the first matrix of attention. Otherwise, for example if that matrix is quantized, returns
    /// bfloat16, the short float type with the range of f32.
    pub(super) fn dtype(self) -> &'static str {
        let is_matrix = |tensor: &&TensorInfo| tensor.name.starts_with("blk.0.attn_") && tensor.shape.len() == 2;
        match self.gguf.tensors.iter().find(is_matrix).map(|tensor| tensor.kind) {
            Some(0) => "float32",
            Some(1) => "float16",
            _ => "bfloat16",
        }
    }

    pub(super) fn eos_token_ids(self) -> Value {
        let mut ids: Vec<u64> = EOS_KEYS.iter().filter_map(|key| self.gguf.count(key)).collect();
        ids.dedup();
        json!(ids)
    }

    /// Returns the rotary scaling.
    ///
    /// # Errors
    /// When the scaling is unknown.
    pub(super) fn rope_scaling(self) -> Result<Option<Value>, ModelError> {
        let original = self.json("rope.scaling.original_context_length");
        if let Some(factors) = &self.factors.all {
            // For each frequency, the converter has stored the number by which the scaling divides it.
            return Ok(Some(json!({"rope_type": "longrope", "attention_factor": 1.0, "factor": 1.0,
                "short_factor": factors, "long_factor": factors})));
        }
        if let (Some(short), Some(long)) = (&self.factors.short, &self.factors.long) {
            return Ok(Some(json!({"rope_type": "longrope", "short_factor": short, "long_factor": long,
                "original_max_position_embeddings": original,
                "attention_factor": self.json("rope.scaling.attn_factor")})));
        }
        match (self.gguf.text(&self.key("rope.scaling.type")), self.number("rope.scaling.factor")) {
            (None | Some("none"), _) => Ok(None),
            (Some("linear"), Some(factor)) => Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
            (Some("yarn"), Some(factor)) => {
                let mut yarn = Map::new();
                yarn.insert("rope_type".to_owned(), json!("yarn"));
                yarn.insert("factor".to_owned(), json!(factor));
                yarn.insert("original_max_position_embeddings".to_owned(), json!(original));
                let others =
                    [("beta_fast", "beta_fast"), ("beta_slow", "beta_slow"), ("attention_factor", "attn_factor")];
                let read = |name: &str| self.json(&format!("rope.scaling.yarn_{name}"));
                yarn.extend(others.iter().filter_map(|(key, name)| Some(((*key).to_owned(), read(name)?))));
                Ok(Some(Value::Object(yarn)))
            }
            (Some(_), _) => Err(self.unsupported("rope.scaling.type", "none, linear or yarn with a factor")),
        }
    }

    /// Returns an error for the value of a key.
    pub(super) fn unsupported(self, name: &str, supported: &str) -> ModelError {
        let value = self.json(name).unwrap_or_default().to_string();
        ModelError::Metadata { key: self.key(name), value, supported: supported.to_owned() }
    }

    /// Returns the part of each head that is rotated.
    fn rotated(self) -> Option<f64> {
        let rotated = self.count("rope.dimension_count")?;
        let head_dim = match self.count("attention.key_length") {
            Some(head_dim) => head_dim,
            None => self.count("embedding_length")?.checked_div(self.count("attention.head_count")?)?,
        };
        let part = rotated as f64 / head_dim as f64;
        // The size of the rotated part is the product, rounded down.
        let is_short = ((head_dim as f64 * part) as u64) < rotated;
        Some(if is_short { part.next_up() } else { part }).filter(|part| part.is_finite())
    }

    fn windows(self) -> Option<Vec<&'static str>> {
        let num_layers = usize::try_from(self.num_layers()?).ok()?;
        let kind = |value: &GgufValue| match value {
            GgufValue::Bool(true) => "sliding_attention",
            _ => "full_attention",
        };
        Some(self.list("attention.sliding_window_pattern")?.iter().take(num_layers).map(kind).collect())
    }
}

/// Returns the index of a tensor's layer and the rest of its name.
fn layer_of(tensor: &TensorInfo) -> Option<(&str, &str)> {
    tensor.name.strip_prefix("blk.")?.split_once('.')
}

fn scalar(value: &GgufValue) -> Option<Value> {
    match value {
        GgufValue::Integer(number) => i64::try_from(*number).ok().map(Value::from),
        GgufValue::Float(number) => Some(json!(number)),
        GgufValue::Bool(flag) => Some(json!(flag)),
        GgufValue::Text(text) => Some(json!(text)),
        GgufValue::List(_) => None,
    }
}
