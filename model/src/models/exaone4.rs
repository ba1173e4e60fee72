//! EXAONE 4.
//!
//! Paper: LG AI Research, 2025 (arXiv 2507.11407). Follows `transformers/models/exaone4/modeling_exaone4.py`.
//! Differences from Llama: norms come after attention and after the feed-forward network instead of before them; each
//! head of the queries and keys is normalised; by default three of every four layers have a window, and in a model with
//! windows only layers with a window have rotary positions.

use numbers::FloatType;

use super::decoder::{Block, Decoder};
use super::{Config, Model, ModelError, neutral};
use crate::layers::QueryKeyNorm;

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["layer_types", "sliding_window", "sliding_window_pattern"])?;
    let mut decoder = Decoder::llama(&config.or_default("rms_norm_eps", 1e-5), dtype, num_ranks)?;
    decoder.block = Block::Sequential {
        before_attention: None,
        after_attention: Some("post_attention_layernorm"),
        before_mlp: None,
        after_mlp: Some("post_feedforward_layernorm"),
    };
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    set_windows(&mut decoder, config)?;
    decoder.build()
}

/// Sets the windows of layers, and removes the rotary positions of layers without a window.
///
/// # Errors
/// When a key is malformed.
pub(super) fn set_windows(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    let has_windows = config.has("sliding_window");
    // The pattern may be a text, which the types of layers repeat.
    let pattern =
        if has_windows && !config.has("layer_types") { config.size_or("sliding_window_pattern", 4)? } else { 1 };
    let sliding = decoder.set_windows(config, |layer| (layer + 1) % pattern != 0)?;
    for (layer, is_sliding) in decoder.layers.iter_mut().zip(sliding) {
        layer.rotary = layer.rotary.take().filter(|_| is_sliding || !has_windows);
    }
    Ok(())
}
