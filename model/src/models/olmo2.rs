//! OLMo 2 and 3.
//!
//! Papers: OLMo team, 2025 (arXiv 2501.00656), and allenai.org/olmo3. Follows
//! `transformers/models/olmo2/modeling_olmo2.py` and `olmo3/modeling_olmo3.py`. Differences from Llama: norms come
//! after attention and after the feed-forward network instead of before them; queries and keys are normalised over all
//! heads together. In OLMo 3, by default three of every four layers have a window, and the rotary embedding of these
//! layers is not scaled.

use numbers::FloatType;

use super::decoder::{Block, Decoder};
use super::{Config, Model, ModelError, neutral};
use crate::layers::QueryKeyNorm;

/// Builds OLMo 2; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias"])?;
    decoder(config, dtype, num_ranks)?.build()
}

/// Builds OLMo 3; see [`super::build`].
pub(super) fn build_olmo3(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "layer_types", "sliding_window"])?;
    let mut decoder = decoder(config, dtype, num_ranks)?;
    let sliding = decoder.set_windows(config, |layer| (layer + 1) % 4 != 0)?;
    decoder.set_local_rotary(config, &sliding, config.number_or("rope_theta", 10_000.0)?)?;
    decoder.build()
}

/// Returns the description of OLMo 2.
///
/// # Errors
/// When a key is missing or malformed. The message names the key.
pub(super) fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.block = Block::Sequential {
        before_attention: None,
        after_attention: Some("post_attention_layernorm"),
        before_mlp: None,
        after_mlp: Some("post_feedforward_layernorm"),
    };
    decoder.attention.norm = QueryKeyNorm::AllHeads(decoder.norm.eps);
    Ok(decoder)
}
