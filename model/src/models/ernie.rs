//! ERNIE 4.5, dense.
//!
//! Described in Baidu's ERNIE 4.5 report, 2025. Follows `transformers/models/ernie4_5/modeling_ernie4_5.py`.
//! Differences from Llama: rotary embeddings rotate pairs of adjacent values of a head, by default with the base
//! 500,000; `use_bias` gives all layers biases; embeddings are tied by default.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["use_bias"])?;
    decoder(config, dtype, num_ranks)?.build()
}

/// Returns the decoder with the properties that all ERNIE 4.5 models share.
///
/// # Errors
/// When a key is missing or malformed. The message names the key.
pub(super) fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    let config = &config.or_default("rope_theta", 500_000.0).or_default("rms_norm_eps", 1e-5);
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.rotate_neighbours(config)?;
    decoder.set_biases(config.flag_or("use_bias", false)?);
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    Ok(decoder)
}
