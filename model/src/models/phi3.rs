//! Phi 3, 3.5 and 4.
//!
//! Papers: Abdin et al., 2024 (arXiv 2404.14219, 2412.08905). Follows `transformers/models/phi3/modeling_phi3.py`.
//! Differences from Llama: the weights of queries, keys and values are one tensor, and those of gate and up are
//! another; all layers may have a window; part of each head may stay unrotated; long contexts use `longrope`.

use numbers::FloatType;

use super::decoder::{Decoder, MlpForm, Projections};
use super::{Config, Model, ModelError, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["partial_rotary_factor", "sliding_window"])?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.projections = Projections::Fused { qkv: "qkv_proj", output: "o_proj" };
    decoder.mlp_form = MlpForm::GatedFused { gate_up: "gate_up_proj", down: "down_proj" };
    let has_window = config.has("sliding_window");
    decoder.set_windows(config, |_| has_window)?;
    decoder.build()
}
