//! OLMoE and FlexOlmo.
//!
//! Papers: Muennighoff et al., 2024 (arXiv 2409.02060), and Shi et al., 2025 (arXiv 2507.07024). Follows
//! `transformers/models/olmoe/modeling_olmoe.py` and `flex_olmo/modeling_flex_olmo.py`. Differences from Llama: all
//! heads of queries, and all heads of keys, are normalised together. All layers have experts, whose weights are a
//! softmax over all experts. The norms of FlexOlmo are those of OLMo 2.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral, olmo2, qwen_moe};
use crate::layers::QueryKeyNorm;

const KEYS: [&str; 3] = ["attention_bias", "num_experts", "num_local_experts"];

/// Builds OLMoE; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &KEYS)?;
    let config = &config.or_default("rms_norm_eps", 1e-5);
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::AllHeads(decoder.norm.eps);
    let width = decoder.mlp.intermediate_size;
    qwen_moe::set_experts(&mut decoder, config, (width, None))?;
    decoder.build()
}

/// Builds FlexOlmo; see [`super::build`].
pub(super) fn build_flex(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &KEYS)?;
    let config = &config.or_default("rope_theta", 500_000.0);
    let mut decoder = olmo2::decoder(config, dtype, num_ranks)?;
    let width = decoder.mlp.intermediate_size;
    qwen_moe::set_experts(&mut decoder, config, (width, None))?;
    decoder.build()
}
