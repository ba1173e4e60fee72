//! Nemotron 3 and 4, Minitron, Arcee's AFM, and Jais 2.
//!
//! Papers: Parmar et al., 2024 (arXiv 2402.16819); Muralidharan et al., 2024 (arXiv 2407.14679). Follows
//! `transformers/models/nemotron/modeling_nemotron.py`, `arcee/modeling_arcee.py` and `jais2/modeling_jais2.py`.
//! Differences from Llama: the feed-forward network has no gate, and its activation is the squared ReLU. In Nemotron,
//! norms are by mean and variance and multiply by 1 + weight, and only a part of each head is rotated
//! (`partial_rotary_factor`). In Jais 2, norms are by mean and variance, and all layers have biases by default.

use numbers::FloatType;

use super::decoder::{Decoder, MlpForm};
use super::{Config, Model, ModelError, neutral};
use crate::layers::{NormForm, WeightScope};

/// Builds Nemotron; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "mlp_bias", "partial_rotary_factor"])?;
    let config = &config.or_default("hidden_act", "relu2").or_default("partial_rotary_factor", 0.5);
    let norm = NormForm { offset: 1.0, ..NormForm::layer(config.epsilon_or("norm_eps", 1e-5)?) };
    let root = WeightScope::root(dtype, num_ranks);
    let mut decoder = Decoder::new(config, root, norm, config.size("intermediate_size")?)?;
    decoder.mlp_form = PLAIN;
    decoder.build()
}

/// Builds Arcee; see [`super::build`].
pub(super) fn build_arcee(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "mlp_bias"])?;
    let mut decoder = Decoder::llama(&config.or_default("hidden_act", "relu2"), dtype, num_ranks)?;
    decoder.mlp_form = PLAIN;
    decoder.build()
}

/// Builds Jais 2; see [`super::build`].
pub(super) fn build_jais2(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "mlp_bias"])?;
    let config = &config.or_default("hidden_act", "relu2").or_default("attention_bias", true);
    let norm = NormForm::layer(config.epsilon_or("layer_norm_eps", 1e-5)?);
    let root = WeightScope::root(dtype, num_ranks);
    let config = &config.or_default("mlp_bias", true);
    let mut decoder = Decoder::new(config, root, norm, config.size("intermediate_size")?)?;
    decoder.mlp_form = PLAIN;
    decoder.build()
}

const PLAIN: MlpForm = MlpForm::Plain { up: "up_proj", down: "down_proj" };
