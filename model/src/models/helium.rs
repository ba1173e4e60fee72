//! Helium 1.
//!
//! Described in kyutai.org/2025/04/30/helium.html. Follows `transformers/models/helium/modeling_helium.py`. Differences
//! from Llama: rotary embeddings rotate pairs of adjacent values of a head, by default with the base 100,000; the
//! output of attention has no bias.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "mlp_bias"])?;
    let config = &config.or_default("rope_theta", 100_000.0).or_default("rms_norm_eps", 1e-8);
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.rotate_neighbours(config)?;
    decoder.attention.has_output_bias = false;
    decoder.build()
}
