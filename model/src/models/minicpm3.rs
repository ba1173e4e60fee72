//! MiniCPM 3.
//!
//! Described in github.com/OpenBMB/MiniCPM. Follows `transformers/models/minicpm3/modeling_minicpm3.py`. Differences
//! from Llama: latent attention, whose keys are rotated in halves; embeddings, the outputs of layers and the logits are
//! multiplied by constants; embeddings are tied by default.

use numbers::FloatType;

use super::deepseek::{LATENT_KEYS, decoder};
use super::{Config, Model, ModelError, neutral};
use crate::graph::Pairing;

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood = ["attention_bias", "dim_model_base", "mlp_bias", "scale_depth", "scale_emb"];
    neutral::require(config, &[&LATENT_KEYS[..], &understood].concat())?;
    let config = config.or_default("tie_word_embeddings", true);
    let mut decoder = decoder(&config, dtype, num_ranks, Pairing::Halves)?;
    let hidden_size = decoder.attention.hidden_size as f64;
    decoder.embedding_multiplier = config.number_or("scale_emb", 12.0)? as f32;
    decoder.residual_multiplier = (config.number_or("scale_depth", 1.4)? / (decoder.layers.len() as f64).sqrt()) as f32;
    decoder.logits_multiplier = (config.number_or("dim_model_base", 256.0)? / hidden_size) as f32;
    decoder.build()
}
