//! K-EXAONE.
//!
//! Described in LG AI Research's K-EXAONE report, 2026. Follows
//! `transformers/models/exaone_moe/modeling_exaone_moe.py`. Differences from Llama: each head of the queries and keys
//! is normalised; windows and rotary positions are as in EXAONE 4; most layers have experts as in DeepSeek V3.

use numbers::FloatType;

use super::decoder::Decoder;
use super::sigmoid_experts::{self, Names};
use super::{Config, Model, ModelError, exaone4, neutral};
use crate::layers::QueryKeyNorm;

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let own = ["layer_types", "mlp_layer_types", "num_experts", "num_shared_experts", "sliding_window"];
    neutral::require(config, &[&own[..], &["sliding_window_pattern"], &sigmoid_experts::KEYS].concat())?;
    let config = &with_defaults(config);
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    exaone4::set_windows(&mut decoder, config)?;
    let bias = "e_score_correction_bias";
    let names = Names { num_experts: "num_experts", num_shared: "num_shared_experts", bias, ..Names::DEEPSEEK };
    sigmoid_experts::set(&mut decoder, config, &names)?;
    decoder.build()
}

/// Returns `config` with the values that transformers assumes for missing keys, where other families assume others.
fn with_defaults(config: &Config) -> Config {
    let config = config.or_default("first_k_dense_replace", 1).or_default("norm_topk_prob", true);
    let config = config.or_default("num_shared_experts", 1).or_default("routed_scaling_factor", 2.5);
    config.or_default("rms_norm_eps", 1e-5).or_default("sliding_window", 4096)
}
