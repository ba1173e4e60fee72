//! OLMoE and FlexOlmo.
//!
//! Papers: Muennighoff et al., 2024 (arXiv 2409.02060), and Shi et al., 2025 (arXiv 2507.07024). Follows
//! `transformers/models/olmoe/modeling_olmoe.py` and `flex_olmo/modeling_flex_olmo.py`. Differences from Llama: queries
//! and keys are normalised over all heads together; all layers have experts, whose weights are a softmax over all
//! experts. The norms of FlexOlmo are those of OLMo 2.

use numbers::FloatType;

use super::decoder::{Decoder, ExpertsForm};
use super::{Config, Model, ModelError, neutral, olmo2};
use crate::layers::{ExpertNames, QueryKeyNorm, RouterForm};

/// Builds OLMoE; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "num_experts", "num_local_experts"])?;
    let config = &config.or_default("rms_norm_eps", 1e-5);
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::AllHeads(decoder.norm.eps);
    set_experts(&mut decoder, config)?;
    decoder.build()
}

/// Builds FlexOlmo; see [`super::build`].
pub(super) fn build_flex(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "num_experts", "num_local_experts"])?;
    let config = &config.or_default("rope_theta", 500_000.0);
    let mut decoder = olmo2::decoder(config, dtype, num_ranks)?;
    set_experts(&mut decoder, config)?;
    decoder.build()
}

fn set_experts(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    let key = if config.has("num_experts") { "num_experts" } else { "num_local_experts" };
    let is_normalised = config.flag_or("norm_topk_prob", false)?;
    decoder.experts = Some(ExpertsForm {
        scope: "mlp",
        names: ExpertNames::Each(["gate_proj", "up_proj", "down_proj"]),
        gating: decoder.mlp.activation.into(),
        intermediate_size: decoder.mlp.intermediate_size,
        num_experts: config.size(key)?,
        router: RouterForm::softmax("gate", config.size("num_experts_per_tok")?, is_normalised),
        shared: None,
    });
    decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
    Ok(())
}
