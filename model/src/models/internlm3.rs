//! InternLM 3.
//!
//! Described in github.com/InternLM/InternLM, 2025. Follows `transformers/models/internlm3/configuration_internlm3.py`,
//! whose model is Llama. Differences from Llama: `qkv_bias` gives queries, keys and values biases, and `bias` all other
//! layers.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["bias", "qkv_bias"])?;
    let mut decoder = Decoder::llama(&config.or_default("rms_norm_eps", 1e-5), dtype, num_ranks)?;
    decoder.set_biases(config.flag_or("bias", false)?);
    decoder.attention.has_bias = config.flag_or("qkv_bias", false)?;
    decoder.build()
}
