//! GLM-4, dense: the first form (`glm`, GLM-4 9B of 2024) and the second (`glm4`, GLM-4 and GLM-Z1 of 2025).
//!
//! Paper: GLM team, 2024 (arXiv 2406.12793). Follows `transformers/models/glm/modeling_glm.py` and
//! `glm4/modeling_glm4.py`. Differences from Llama: rotary embeddings rotate pairs of adjacent values, by default in
//! half of each head; queries, keys and values have biases by default; gate and up are one tensor. In the second form
//! there are also norms after attention and after the feed-forward network.

use numbers::FloatType;

use super::decoder::{Block, Decoder, MlpForm};
use super::{Config, Model, ModelError, neutral};

/// Builds the first form; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    decoder(config, dtype, num_ranks)?.build()
}

/// Builds the second form; see [`super::build`].
pub(super) fn build_glm4(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let mut decoder = decoder(config, dtype, num_ranks)?;
    decoder.block = Block::Sequential {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_self_attn_layernorm"),
        before_mlp: Some("post_attention_layernorm"),
        after_mlp: Some("post_mlp_layernorm"),
    };
    decoder.build()
}

fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    neutral::require(config, &["attention_bias", "partial_rotary_factor"])?;
    let config = &config.or_default("attention_bias", true).or_default("partial_rotary_factor", 0.5);
    let mut decoder = Decoder::llama(&config.or_default("rms_norm_eps", 1.5625e-7), dtype, num_ranks)?;
    decoder.rotate_neighbours(config)?;
    decoder.attention.has_output_bias = false;
    decoder.mlp_form = MlpForm::GatedFused { gate_up: "gate_up_proj", down: "down_proj" };
    Ok(decoder)
}
