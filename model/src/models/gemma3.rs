//! Gemma 3, text.
//!
//! Paper: Gemma team, 2025 (arXiv 2503.19786). Follows `transformers/models/gemma3/modeling_gemma3.py`. Differences
//! from Gemma 2: each head of the queries and keys is normalised; attention scores have no soft cap; five layers with a
//! window are followed by one layer without; layers with and without a window have separate rotary parameters
//! (`rope_local_base_freq` in old files).

use numbers::FloatType;

use super::{Config, Model, ModelError, gemma, gemma2, neutral};
use crate::layers::QueryKeyNorm;

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood = [
        "attention_bias",
        "final_logit_softcapping",
        "layer_types",
        "query_pre_attn_scalar",
        "rope_local_base_freq",
        "sliding_window",
        "sliding_window_pattern",
    ];
    neutral::require(config, &understood)?;
    let mut decoder = gemma::decoder(config, dtype, num_ranks)?;
    gemma2::set_block(&mut decoder, config)?;
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    let pattern = config.size_or("sliding_window_pattern", 6)?;
    let sliding = decoder.set_windows(config, |layer| (layer + 1) % pattern != 0)?;
    decoder.set_local_rotary(config, &sliding, config.number_or("rope_local_base_freq", 10_000.0)?)?;
    decoder.build()
}
