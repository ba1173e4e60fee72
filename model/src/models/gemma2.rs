//! Gemma 2.
//!
//! Paper: Gemma team, 2024 (arXiv 2408.00118). Follows `transformers/models/gemma2/modeling_gemma2.py`. Differences
//! from Gemma 1: every second layer has a window, beginning with the first; soft caps bound attention scores and
//! logits; the factor of the attention scores comes from `query_pre_attn_scalar`; there are norms both before and after
//! attention, and before and after the feed-forward network.

use numbers::FloatType;

use super::decoder::{Block, Decoder};
use super::{Config, Model, ModelError, gemma, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    decoder(config, dtype, num_ranks)?.build()
}

/// Returns the decoder of Gemma 2.
///
/// # Errors
/// When a key is missing or malformed. The message names the key.
pub(super) fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    let understood = [
        "attention_bias",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "layer_types",
        "query_pre_attn_scalar",
        "sliding_window",
    ];
    neutral::require(config, &understood)?;
    let mut decoder = gemma::decoder(config, dtype, num_ranks)?;
    set_block(&mut decoder, config)?;
    decoder.attention.soft_cap = config.number("attn_logit_softcapping")?.map(|cap| cap as f32);
    decoder.set_windows(config, |layer| layer % 2 == 0)?;
    Ok(decoder)
}

/// Sets the norms, the factor of the attention scores and the soft cap of the logits, as in Gemma 2 and 3.
///
/// # Errors
/// When a key is missing or malformed. The message names the key.
pub(super) fn set_block(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    decoder.block = Block::Sequential {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_attention_layernorm"),
        before_mlp: Some("pre_feedforward_layernorm"),
        after_mlp: Some("post_feedforward_layernorm"),
    };
    let scalar = config.number_or("query_pre_attn_scalar", 256.0)?;
    decoder.attention.scale = scalar.powf(-0.5) as f32;
    decoder.logits_soft_cap = config.number("final_logit_softcapping")?.map(|cap| cap as f32);
    Ok(())
}
