//! dots.llm1.
//!
//! Paper: rednote-hilab, 2025 (arXiv 2506.05767). Follows `transformers/models/dots1/modeling_dots1.py`. Differences
//! from Llama: each head of the queries and keys is normalised; most layers have experts as in DeepSeek V3; if there is
//! a window, the layers from `max_window_layers` on have it.

use numbers::FloatType;

use super::decoder::Decoder;
use super::sigmoid_experts::{self, Names};
use super::{Config, Model, ModelError, neutral};
use crate::layers::QueryKeyNorm;

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let own = ["attention_bias", "layer_types", "n_shared_experts", "sliding_window"];
    neutral::require(config, &[&own[..], &sigmoid_experts::KEYS].concat())?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    let first = if config.has("sliding_window") { config.count_or("max_window_layers", 62)? } else { usize::MAX };
    decoder.set_windows(config, |layer| layer >= first)?;
    sigmoid_experts::set(&mut decoder, config, &Names::DEEPSEEK)?;
    decoder.build()
}
