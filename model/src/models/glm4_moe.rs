//! GLM 4.5, 4.6 and 4.7, and Solar Open.
//!
//! Paper: GLM-4.5 team, 2025 (arXiv 2508.06471). Follows `transformers/models/glm4_moe/modeling_glm4_moe.py`.
//! Differences from Llama: queries, keys and values may have biases, but the output of attention has none; queries and
//! keys may be normalised; half of each head is rotated; most layers have experts as in DeepSeek V3. The layers after
//! the last one, which predict further tokens, are not read. Solar Open (`solar_open/modeling_solar_open.py`) has
//! experts in all layers, and rotates whole heads.

use numbers::FloatType;

use super::decoder::Decoder;
use super::sigmoid_experts::{self, Names};
use super::{Config, Model, ModelError, neutral};
use crate::layers::QueryKeyNorm;

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let own = ["attention_bias", "n_shared_experts", "partial_rotary_factor", "use_qk_norm"];
    neutral::require(config, &[&own[..], &sigmoid_experts::KEYS].concat())?;
    let config = &with_defaults(config);
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.has_output_bias = false;
    if config.flag_or("use_qk_norm", false)? {
        decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    }
    sigmoid_experts::set(&mut decoder, config, &Names::DEEPSEEK)?;
    decoder.build()
}

/// Builds Solar Open; see [`super::build`].
pub(super) fn build_solar(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let fixed = [("first_k_dense_replace", "0"), ("partial_rotary_factor", "1"), ("use_qk_norm", "false")];
    config.require_fixed(&fixed)?;
    let config = config.or_default("first_k_dense_replace", 0).or_default("partial_rotary_factor", 1.0);
    let config = config.or_default("head_dim", 128).or_default("rope_theta", 1_000_000.0);
    // No layer has this width.
    let width = config.size("moe_intermediate_size")?;
    build(&config.or_default("intermediate_size", width), dtype, num_ranks)
}

/// Returns `config` with the values that transformers assumes for missing keys, where Llama has others.
fn with_defaults(config: &Config) -> Config {
    let config = config.or_default("first_k_dense_replace", 1).or_default("n_shared_experts", 1);
    let config = config.or_default("norm_topk_prob", true).or_default("partial_rotary_factor", 0.5);
    config.or_default("rms_norm_eps", 1e-5)
}
