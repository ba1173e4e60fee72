//! Granite 3, and HyperCLOVA X.
//!
//! Described in IBM's Granite 3.0 report, 2024, and in Naver's HyperCLOVA X report, 2025 (arXiv 2506.22403). Follows
//! `transformers/models/granite/modeling_granite.py` and `hyperclovax/modeling_hyperclovax.py`. Differences from Llama:
//! the embeddings, the attention scores, and the outputs of attention and feed-forward network are multiplied by
//! factors; logits are divided by `logits_scaling`. In HyperCLOVA X, logits are multiplied by `logits_scaling`, and by
//! default there are also norms after attention and after the feed-forward network (`use_post_norm`).

use numbers::FloatType;

use super::decoder::{Block, Decoder};
use super::{Config, Model, ModelError, neutral};

/// Builds Granite; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &FACTORS)?;
    let mut decoder = decoder(config, dtype, num_ranks)?;
    decoder.attention.scale = config.number_or("attention_multiplier", 1.0)? as f32;
    decoder.logits_multiplier = 1.0 / config.number_or("logits_scaling", 1.0)? as f32;
    decoder.build()
}

/// Builds HyperCLOVA X; see [`super::build`].
pub(super) fn build_hyperclovax(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[&FACTORS[..], &["use_post_norm"]].concat())?;
    let mut decoder = decoder(config, dtype, num_ranks)?;
    if let Some(multiplier) = config.number("attention_multiplier")? {
        decoder.attention.scale = multiplier as f32;
    }
    decoder.logits_multiplier = config.number_or("logits_scaling", 1.0)? as f32;
    if config.flag_or("use_post_norm", true)? {
        decoder.block = Block::Sequential {
            before_attention: Some("input_layernorm"),
            after_attention: Some("post_norm1"),
            before_mlp: Some("post_attention_layernorm"),
            after_mlp: Some("post_norm2"),
        };
    }
    decoder.build()
}

/// Keys that both families understand.
const FACTORS: [&str; 6] = [
    "attention_bias",
    "attention_multiplier",
    "embedding_multiplier",
    "logits_scaling",
    "mlp_bias",
    "residual_multiplier",
];

fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.embedding_multiplier = config.number_or("embedding_multiplier", 1.0)? as f32;
    decoder.residual_multiplier = config.number_or("residual_multiplier", 1.0)? as f32;
    Ok(decoder)
}
