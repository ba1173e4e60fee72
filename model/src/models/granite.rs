//! Granite 3.
//!
//! Described in IBM's Granite 3.0 report, 2024. Follows `transformers/models/granite/modeling_granite.py`. Differences
//! from Llama: the embeddings, the attention scores, and the outputs of attention and feed-forward network are
//! multiplied by factors; logits are divided by `logits_scaling`.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood = [
        "attention_bias",
        "attention_multiplier",
        "embedding_multiplier",
        "logits_scaling",
        "mlp_bias",
        "residual_multiplier",
    ];
    neutral::require(config, &understood)?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.scale = config.number_or("attention_multiplier", 1.0)? as f32;
    decoder.embedding_multiplier = config.number_or("embedding_multiplier", 1.0)? as f32;
    decoder.residual_multiplier = config.number_or("residual_multiplier", 1.0)? as f32;
    decoder.logits_multiplier = 1.0 / config.number_or("logits_scaling", 1.0)? as f32;
    decoder.build()
}
