//! Qwen 1.5, 2 and 3 with mixtures of experts.
//!
//! Described in qwenlm.github.io/blog/qwen-moe and in Yang et al., 2025 (arXiv 2505.09388). Follows
//! `transformers/models/qwen2_moe/modeling_qwen2_moe.py` and `qwen3_moe/modeling_qwen3_moe.py`. Differences from Qwen 2
//! and 3: the feed-forward network of most layers (`decoder_sparse_step`, `mlp_only_layers`) is a mixture of experts.
//! Qwen 2 also has a gated, shared expert that reads every token.

use numbers::FloatType;

use super::decoder::{Decoder, ExpertsForm};
use super::{Config, Model, ModelError, neutral, qwen2};
use crate::layers::{ExpertNames, QueryKeyNorm};

/// Builds Qwen 2 with experts; see [`super::build`].
pub(super) fn build_qwen2(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["layer_types", "num_experts", "qkv_bias", "sliding_window", "use_sliding_window"])?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.has_bias = config.flag_or("qkv_bias", true)?;
    qwen2::set_windows(&mut decoder, config)?;
    let shared = config.size("shared_expert_intermediate_size")?;
    set_experts(&mut decoder, config, Some(shared))?;
    decoder.build()
}

/// Builds Qwen 3 with experts; see [`super::build`].
pub(super) fn build_qwen3(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(
        config,
        &["attention_bias", "num_experts", "num_local_experts", "sliding_window", "use_sliding_window"],
    )?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    let has_window = config.flag_or("use_sliding_window", false)? && config.has("sliding_window");
    decoder.set_windows(config, |_| has_window)?;
    set_experts(&mut decoder, config, None)?;
    decoder.build()
}

fn set_experts(decoder: &mut Decoder, config: &Config, shared: Option<usize>) -> Result<(), ModelError> {
    let num_experts = match config.has("num_experts") {
        true => config.size("num_experts")?,
        false => config.size("num_local_experts")?,
    };
    decoder.experts = Some(ExpertsForm {
        scope: "mlp",
        names: ExpertNames::Each(["gate_proj", "up_proj", "down_proj"]),
        gating: decoder.mlp.activation.into(),
        intermediate_size: config.size("moe_intermediate_size")?,
        num_experts,
        num_chosen: config.size("num_experts_per_tok")?,
        is_normalised: config.flag_or("norm_topk_prob", false)?,
        shared,
    });
    let step = config.size_or("decoder_sparse_step", 1)?;
    let dense = if config.has("mlp_only_layers") { config.numbers("mlp_only_layers")? } else { Vec::new() };
    for (idx, layer) in decoder.layers.iter_mut().enumerate() {
        layer.has_experts = (idx + 1) % step == 0 && !dense.contains(&(idx as f64));
    }
    Ok(())
}
