//! The metadata of a GGUF file, translated to the config.json of the same model.
//!
//! Entry point: [`config`]. The names are those of llama.cpp's converter (`gguf-py/gguf/constants.py`,
//! `convert_hf_to_gguf.py`). The converter omits some values that llama.cpp derives from the size of the model; this
//! file derives them in the same way.

use model_files::{Gguf, GgufValue};
use serde_json::{Map, Value, json};

use super::ModelError;

/// `general.architecture` → Hugging Face architecture.
const ARCHITECTURES: [(&str, &str); 6] = [
    ("gemma", "GemmaForCausalLM"),
    ("gemma2", "Gemma2ForCausalLM"),
    ("gemma3", "Gemma3ForCausalLM"),
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
];
/// Keys of config.json, each with its key in the metadata, without the name of the architecture.
const KEYS: [(&str, &str); 13] = [
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("head_dim", "attention.key_length"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("max_position_embeddings", "context_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_hidden_layers", "block_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("query_pre_attn_scalar", "attention.key_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("sliding_window", "attention.sliding_window"),
];
/// The architecture and the number of layers of the models in which `query_pre_attn_scalar` is not the width of a head,
/// but `hidden_size / num_attention_heads`.
const SCALED_BY_WIDTH: [(&str, u64); 2] = [("gemma2", 46), ("gemma3", 62)];
const EMBEDDING: &str = "token_embd.weight";
const EOS_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Returns the config.json of the model; `rope_factors` are the values of the tensor `rope_freqs.weight`, if the file
/// has it.
///
/// # Errors
/// When the architecture is unknown, the model has experts, its rotary scaling is unknown, or the embedding has no
/// dimensions.
pub fn config(gguf: &Gguf, rope_factors: Option<Vec<f32>>) -> Result<Map<String, Value>, ModelError> {
    let file = Metadata { gguf, architecture: gguf.text("general.architecture").unwrap_or_default() };
    let known = ARCHITECTURES.iter().find(|(name, _)| *name == file.architecture);
    let (_, architecture) = known.ok_or_else(|| ModelError::UnknownArchitecture {
        architecture: format!("{} of a GGUF file", file.architecture),
        num_known: ARCHITECTURES.len(),
        example: "llama",
    })?;
    if file.count("expert_count").is_some_and(|count| count > 0) {
        return Err(file.unsupported("expert_count", "0 (a model with experts needs a checkpoint in safetensors)"));
    }
    let mut config = Map::new();
    let keys = KEYS.into_iter().filter(|(key, _)| file.has_key(key));
    config.extend(keys.filter_map(|(key, name)| Some((key.to_owned(), file.json(name)?))));
    let has_tensor = |name: &str| gguf.tensors.iter().any(|tensor| tensor.name == name);
    let embedding = gguf.tensors.iter().find(|tensor| tensor.name == EMBEDDING);
    let vocab_size = embedding.map(|tensor| tensor.shape.first().ok_or_else(without_dimensions)).transpose()?;
    let others = [
        ("architectures", json!([architecture])),
        ("attention_bias", json!(file.architecture == "llama" && has_tensor("blk.0.attn_q.bias"))),
        ("dtype", json!(file.dtype())),
        ("eos_token_id", file.eos_token_ids()),
        ("hidden_act", json!(if file.is_gemma() { "gelu_pytorch_tanh" } else { "silu" })),
        // The converter sorts the rows of the query and key matrices of such models so that adjacent values are rotated
        // together.
        ("rope_interleaved", json!(file.architecture == "llama")),
        ("tie_word_embeddings", json!(!has_tensor("output.weight"))),
        ("vocab_size", json!(vocab_size)),
    ];
    config.extend(others.map(|(key, value)| (key.to_owned(), value)));
    if let Some(scaling) = file.rope_scaling(rope_factors)? {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    if let Some(scalar) = file.width_of_heads() {
        config.insert("query_pre_attn_scalar".to_owned(), json!(scalar));
    }
    Ok(config)
}

#[derive(Clone, Copy)]
struct Metadata<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
}

impl Metadata<'_> {
    fn key(self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn is_gemma(self) -> bool {
        self.architecture.starts_with("gemma")
    }

    fn count(self, name: &str) -> Option<u64> {
        self.gguf.count(&self.key(name))
    }

    /// True if the key applies to models of the architecture.
    fn has_key(self, key: &str) -> bool {
        match key {
            "query_pre_attn_scalar" | "sliding_window" => matches!(self.architecture, "gemma2" | "gemma3"),
            "attn_logit_softcapping" | "final_logit_softcapping" => self.architecture == "gemma2",
            _ => true,
        }
    }

    fn json(self, name: &str) -> Option<Value> {
        match self.gguf.get(&self.key(name))? {
            GgufValue::Integer(number) => i64::try_from(*number).ok().map(Value::from),
            GgufValue::Float(number) => Some(json!(number)),
            GgufValue::Bool(flag) => Some(json!(flag)),
            GgufValue::Text(text) => Some(json!(text)),
            GgufValue::List(_) => None,
        }
    }

    /// Returns the type of the first layer's query matrix. Otherwise, for example if that matrix is quantized, returns
    /// bfloat16, the short float type with the range of f32.
    fn dtype(self) -> &'static str {
        let first = self.gguf.tensors.iter().find(|tensor| tensor.name == "blk.0.attn_q.weight");
        match first.map(|tensor| tensor.kind) {
            Some(0) => "float32",
            Some(1) => "float16",
            _ => "bfloat16",
        }
    }

    fn eos_token_ids(self) -> Value {
        let mut ids: Vec<u64> = EOS_KEYS.iter().filter_map(|key| self.gguf.count(key)).collect();
        ids.dedup();
        json!(ids)
    }

    fn rope_scaling(self, factors: Option<Vec<f32>>) -> Result<Option<Value>, ModelError> {
        if let Some(factors) = factors {
            // For each frequency, the converter has stored the number by which Llama 3's scaling divides it.
            return Ok(Some(json!({"rope_type": "longrope", "attention_factor": 1.0, "factor": 1.0,
                "short_factor": factors, "long_factor": factors})));
        }
        let number = |name: &str| self.gguf.number(&self.key(name));
        let factor = number("rope.scaling.factor");
        match (self.gguf.text(&self.key("rope.scaling.type")), factor) {
            (None | Some("none"), _) => Ok(None),
            (Some("linear"), Some(factor)) => Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
            (Some("yarn"), Some(factor)) => {
                let original = number("rope.scaling.original_context_length");
                Ok(Some(json!({"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original})))
            }
            (Some(_), _) => Err(self.unsupported("rope.scaling.type", "none, linear or yarn with a factor")),
        }
    }

    fn width_of_heads(self) -> Option<u64> {
        let layers = self.count("block_count")?;
        let is_scaled = SCALED_BY_WIDTH.contains(&(self.architecture, layers));
        // If the number of heads is 0, the code that reads `num_attention_heads` reports it.
        let width = self.count("embedding_length")?.checked_div(self.count("attention.head_count")?);
        width.filter(|_| is_scaled)
    }

    fn unsupported(self, name: &str, supported: &str) -> ModelError {
        let value = self.json(name).unwrap_or_default().to_string();
        ModelError::Metadata { key: self.key(name), value, supported: supported.to_owned() }
    }
}

fn without_dimensions() -> ModelError {
    let supported = "a matrix with a row for each token".to_owned();
    ModelError::Metadata { key: EMBEDDING.to_owned(), value: "a tensor without dimensions".to_owned(), supported }
}
