//! Mixtral.
//!
//! Paper: Jiang et al., 2024 (arXiv 2401.04088). Follows `transformers/models/mixtral/modeling_mixtral.py`. Difference
//! from Mistral: the feed-forward network is a mixture of experts, and the weights of the chosen experts add up to 1.

use numbers::FloatType;

use super::decoder::{Decoder, ExpertsForm};
use super::{Config, Model, ModelError, neutral};
use crate::layers::{ExpertNames, RouterForm};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["num_local_experts", "sliding_window"])?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    let has_window = config.has("sliding_window");
    decoder.set_windows(config, |_| has_window)?;
    decoder.experts = Some(ExpertsForm {
        scope: "block_sparse_moe",
        names: ExpertNames::Each(["w1", "w3", "w2"]),
        gating: decoder.mlp.activation.into(),
        intermediate_size: decoder.mlp.intermediate_size,
        num_experts: config.size("num_local_experts")?,
        router: RouterForm::softmax("gate", config.size("num_experts_per_tok")?, true),
        shared: None,
    });
    decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
    decoder.build()
}
