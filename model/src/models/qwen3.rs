//! Qwen 3.
//!
//! Paper: Yang et al., 2025 (arXiv 2505.09388). Follows `transformers/models/qwen3/modeling_qwen3.py`. Differences from
//! Llama: each head of the queries and keys is normalised before it is rotated; `head_dim` is independent of the hidden
//! size; windows are as in Qwen 2. The text model of Qwen 3 VL (arXiv 2511.21631, `qwen3_vl/modeling_qwen3_vl.py`) is
//! the same without windows.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral, qwen2};
use crate::layers::QueryKeyNorm;

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "layer_types", "sliding_window", "use_sliding_window"])?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    qwen2::set_windows(&mut decoder, config)?;
    decoder.build()
}

/// Builds the text model of Qwen 3 VL; see [`super::build`].
pub(super) fn build_vl(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias"])?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    decoder.build()
}
