//! StarCoder 2.
//!
//! Paper: Lozhkov et al., 2024 (arXiv 2402.19173). Follows `transformers/models/starcoder2/modeling_starcoder2.py`.
//! Differences from Llama: norms are by mean and variance, with bias; the feed-forward network has no gate; all layers
//! have biases (`use_bias`); all layers may have a window; embeddings are tied by default.

use numbers::FloatType;

use super::decoder::{Decoder, MlpForm};
use super::{Config, Model, ModelError, neutral};
use crate::layers::{NormForm, WeightScope};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["sliding_window", "use_bias"])?;
    let norm = NormForm::layer(config.epsilon_or("norm_epsilon", 1e-5)?);
    let root = WeightScope::root(dtype, num_ranks);
    let config = &config.or_default("hidden_act", "gelu_pytorch_tanh");
    let mut decoder = Decoder::new(config, root, norm, config.size("intermediate_size")?)?;
    let has_bias = config.flag_or("use_bias", true)?;
    decoder.set_biases(has_bias);
    decoder.mlp_form = MlpForm::Plain { up: "c_fc", down: "c_proj" };
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    let has_window = config.has("sliding_window");
    decoder.set_windows(config, |_| has_window)?;
    decoder.build()
}
