//! Gemma 1.
//!
//! Paper: Gemma team, 2024 (arXiv 2403.08295). Follows `transformers/models/gemma/modeling_gemma.py`. What differs from Llama:
//! norms multiply by 1 + weight, embeddings are multiplied by the root of the hidden size, rounded to the type of the weights,
//! the gate's function is GELU by its hyperbolic tangent, `head_dim` is independent, and embeddings are tied.

use numbers::FloatType;

use super::decoder::{self, Decoder};
use super::{Config, Model, ModelError, neutral};
use crate::graph::Activation;

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, world_size: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias"])?;
    decoder(config, dtype, world_size)?.build()
}

/// What all of Gemma's models have in common.
///
/// # Errors
/// Names the key that is missing or malformed.
pub(super) fn decoder(config: &Config, dtype: FloatType, world_size: usize) -> Result<Decoder, ModelError> {
    let mut decoder = Decoder::llama(config, dtype, world_size)?;
    decoder.norm.offset = 1.0;
    decoder.embedding_multiplier = dtype.round((decoder.attention.hidden_size as f32).sqrt());
    // Early configurations say `gelu` and mean the approximation.
    decoder.mlp.activation = match decoder::activation(config)? {
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    };
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    Ok(decoder)
}
