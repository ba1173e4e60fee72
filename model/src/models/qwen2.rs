//! Qwen 2 and 2.5, and the text models of Qwen 2 VL and 2.5 VL.
//!
//! Papers: Yang et al., 2024 (arXiv 2407.10671), Wang et al., 2024 (arXiv 2409.12191) and Bai et al., 2025 (arXiv
//! 2502.13923). Follows `transformers/models/qwen2/modeling_qwen2.py`, `qwen2_vl` and `qwen2_5_vl`. Differences from
//! Llama: queries, keys and values have biases, but the output of attention has none; with `use_sliding_window`, the
//! layers from `max_window_layers` on have a window.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["layer_types", "sliding_window", "use_sliding_window"])?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.has_bias = true;
    set_windows(&mut decoder, config)?;
    decoder.build()
}

/// Sets the windows of layers as in Qwen 2 and 3.
///
/// # Errors
/// When a key is malformed, or a layer has a window and `sliding_window` is missing.
pub(super) fn set_windows(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    let has_window = config.flag_or("use_sliding_window", false)? && config.has("sliding_window");
    let first = if has_window { config.number_or("max_window_layers", 28.0)? as usize } else { usize::MAX };
    decoder.set_windows(config, |layer| layer >= first)?;
    Ok(())
}
