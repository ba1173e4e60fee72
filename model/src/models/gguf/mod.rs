//! The metadata of a GGUF file, translated to the config.json of the same model.
//!
//! Entry points: [`config`], [`architectures`], [`find`]. The names are those of llama.cpp's converter
//! (`gguf-py/gguf/constants.py`, `conversion/`). The converter omits some values that llama.cpp derives from the size
//! of the model or from its tensors; this folder derives them in the same way. `rows` is the table of architectures,
//! `special` has what a row cannot say, and `layout` the forms of layers whose tensors the converter changes.

pub(super) mod layout;
mod metadata;
mod rows;
mod special;

use model_files::Gguf;
use serde_json::{Map, Value, json};

use super::ModelError;
use super::rope_config::INTERLEAVED;
use crate::weights::RopeFactors;
use metadata::Metadata;
pub(crate) use rows::{Row, find};

/// The key that says that tensors have the layout of GGUF files. Only this folder writes it.
pub(super) const LAYOUT: &str = "gguf_layout";
/// The key that says that queries, keys and values are one tensor. Only this folder writes it.
pub(super) const FUSED: &str = "gguf_fused_heads";
/// The key that says that each matrix of each expert is a tensor. Only this folder writes it.
pub(super) const EACH_EXPERT: &str = "gguf_each_expert";
const EMBEDDING: &str = "token_embd.weight";

/// Returns the config.json of the model; `factors` are the divisors of rotary frequencies that the file has.
///
/// # Errors
/// When the architecture or the rotary scaling is unknown, a key changes the computation in a way that is not
/// supported, or the embedding has no dimensions.
pub fn config(gguf: &Gguf, factors: &RopeFactors) -> Result<Map<String, Value>, ModelError> {
    let architecture = gguf.text("general.architecture").unwrap_or_default();
    let row = find(architecture).ok_or_else(|| unknown(architecture))?;
    let file = Metadata { gguf, architecture, factors };
    let is_twist = |key: &&&str| !row.reads(key) && file.number(key).is_some_and(|number| number != 0.0);
    if let Some(key) = rows::TWISTS.iter().find(is_twist) {
        return Err(file.unsupported(key, "0 in models of this architecture"));
    }
    let embedding = file.tensor(EMBEDDING);
    let vocab_size = embedding.map(|tensor| tensor.shape.first().ok_or_else(without_dimensions)).transpose()?;
    let mut config = Map::new();
    let fixed = [
        ("architectures", json!([row.name])),
        ("dtype", json!(file.dtype())),
        ("eos_token_id", file.eos_token_ids()),
        (FUSED, json!(file.has_inner("attn_qkv.weight"))),
        (EACH_EXPERT, json!(file.has_inner("ffn_gate.0.weight"))),
        (LAYOUT, json!(true)),
        (INTERLEAVED, json!(false)),
        ("tie_word_embeddings", json!(file.tensor("output.weight").is_none())),
        ("vocab_size", json!(vocab_size)),
    ];
    config.extend(fixed.map(|(key, value)| (key.to_owned(), value)));
    let keys = [rows::COMMON].into_iter().chain(row.keys.iter().copied()).flatten();
    config.extend(keys.filter_map(|(key, origin)| Some(((*key).to_owned(), file.value(*origin)?))));
    if let Some(scaling) = file.rope_scaling()? {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    (row.finish)(file, &mut config)?;
    Ok(config)
}

/// Returns the names of the architectures of GGUF files that are supported.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    rows::ROWS.iter().map(|row| row.architecture)
}

fn unknown(architecture: &str) -> ModelError {
    let names: Vec<&str> = architectures().collect();
    let (key, value) = ("general.architecture".to_owned(), architecture.to_owned());
    ModelError::Metadata { key, value, supported: names.join(", ") }
}

fn without_dimensions() -> ModelError {
    let supported = "a matrix with a row for each token".to_owned();
    ModelError::Metadata { key: EMBEDDING.to_owned(), value: "a tensor without dimensions".to_owned(), supported }
}
