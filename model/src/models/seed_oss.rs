//! Seed-OSS.
//!
//! Described in github.com/ByteDance-Seed/seed-oss, 2025. Follows `transformers/models/seed_oss/modeling_seed_oss.py`.
//! Differences from Llama: queries, keys and values have biases by default, and the output of attention has a switch of
//! its own (`attention_out_bias`).

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "attention_out_bias", "mlp_bias"])?;
    let mut decoder = Decoder::llama(&config.or_default("attention_bias", true), dtype, num_ranks)?;
    decoder.attention.has_output_bias = config.flag_or("attention_out_bias", false)?;
    decoder.build()
}
