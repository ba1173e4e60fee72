//! VaultGemma.
//!
//! Paper: VaultGemma team, 2025 (arXiv 2510.15001). Follows `transformers/models/vaultgemma/modeling_vaultgemma.py`.
//! Difference from Gemma 2: there are no norms after attention and after the feed-forward network.

use numbers::FloatType;

use super::decoder::Block;
use super::{Config, Model, ModelError, gemma2};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let mut decoder = gemma2::decoder(config, dtype, num_ranks)?;
    decoder.block = Block::pre_norm("input_layernorm", "pre_feedforward_layernorm");
    decoder.build()
}
