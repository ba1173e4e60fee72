//! Qwen 1.5, 2 and 3 with mixtures of experts.
//!
//! Described in qwenlm.github.io/blog/qwen-moe and in Yang et al., 2025 (arXiv 2505.09388). Follows
//! `transformers/models/qwen2_moe/modeling_qwen2_moe.py` and `qwen3_moe/modeling_qwen3_moe.py`. Differences from Qwen 2
//! and 3: the feed-forward network of most layers (`decoder_sparse_step`, `mlp_only_layers`) is a mixture of experts.
//! Qwen 2 also has a gated, shared expert that reads every token. In the text model of Qwen 3 VL (arXiv 2511.21631,
//! `qwen3_vl_moe/modeling_qwen3_vl_moe.py`) all experts' matrices are one tensor, and their weights are normalised.

use numbers::FloatType;

use super::decoder::{Decoder, ExpertsForm, SharedForm};
use super::{Config, Model, ModelError, neutral, qwen2};
use crate::layers::{ExpertNames, QueryKeyNorm, RouterForm};

/// Builds Qwen 2 with experts; see [`super::build`].
pub(super) fn build_qwen2(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["layer_types", "num_experts", "qkv_bias", "sliding_window", "use_sliding_window"])?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.has_bias = config.flag_or("qkv_bias", true)?;
    qwen2::set_windows(&mut decoder, config)?;
    let intermediate_size = config.size("shared_expert_intermediate_size")?;
    let gate = Some("mlp.shared_expert_gate");
    let shared = SharedForm { scope: "mlp.shared_expert", intermediate_size, gate };
    set_experts(&mut decoder, config, (config.size("moe_intermediate_size")?, Some(shared)))?;
    decoder.build()
}

/// Builds Qwen 3 with experts; see [`super::build`].
pub(super) fn build_qwen3(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood =
        ["attention_bias", "num_experts", "num_local_experts", "sliding_window", "use_qk_norm", "use_sliding_window"];
    neutral::require(config, &understood)?;
    // Qwen 3 Coder has this key.
    config.require_fixed(&[("use_qk_norm", "true")])?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    let has_window = config.flag_or("use_sliding_window", false)? && config.has("sliding_window");
    decoder.set_windows(config, |_| has_window)?;
    set_experts(&mut decoder, config, (config.size("moe_intermediate_size")?, None))?;
    decoder.build()
}

/// Builds the text model of Qwen 3 VL with experts; see [`super::build`].
pub(super) fn build_qwen3_vl(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "num_experts", "num_local_experts"])?;
    config.require_fixed(&[("norm_topk_prob", "true")])?;
    let (hidden_size, intermediate_size) = (config.size("hidden_size")?, config.size("moe_intermediate_size")?);
    // Transformers cannot tell square matrices from transposed ones, and does not transpose them.
    if [intermediate_size, 2 * intermediate_size].contains(&hidden_size) {
        return Err(config.invalid("moe_intermediate_size", intermediate_size, "neither hidden_size nor its half"));
    }
    let config = &config.or_default("norm_topk_prob", true);
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    set_experts(&mut decoder, config, (intermediate_size, None))?;
    decoder.experts.iter_mut().for_each(|experts| experts.names = ExpertNames::Halves);
    decoder.build()
}

/// Gives experts of width `intermediate_size` to the layers that config.json does not say to be dense.
///
/// # Errors
/// When a key is missing or malformed. The message names the key.
pub(super) fn set_experts(
    decoder: &mut Decoder,
    config: &Config,
    (intermediate_size, shared): (usize, Option<SharedForm>),
) -> Result<(), ModelError> {
    let num_experts = match config.has("num_experts") {
        true => config.size("num_experts")?,
        false => config.size("num_local_experts")?,
    };
    let is_normalised = config.flag_or("norm_topk_prob", false)?;
    decoder.experts = Some(ExpertsForm {
        scope: "mlp",
        names: ExpertNames::Each(["gate_proj", "up_proj", "down_proj"]),
        gating: decoder.mlp.activation.into(),
        intermediate_size,
        num_experts,
        router: RouterForm::softmax("gate", config.size("num_experts_per_tok")?, is_normalised),
        shared,
    });
    let step = config.size_or("decoder_sparse_step", 1)?;
    let dense = if config.has("mlp_only_layers") { config.numbers("mlp_only_layers")? } else { Vec::new() };
    for (idx, layer) in decoder.layers.iter_mut().enumerate() {
        layer.has_experts = (idx + 1) % step == 0 && !dense.contains(&(idx as f64));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(changes: &str) -> String {
        let json = format!(
            r#"{{"architectures": ["Qwen3VLMoeForConditionalGeneration"], "text_config": {{"hidden_size": 32,
                "moe_intermediate_size": 24, "num_experts": 4, "num_hidden_layers": 1{changes}}}}}"#
        );
        let config = Config::parse(json.as_bytes()).unwrap();
        build_qwen3_vl(&config, FloatType::F32, 1).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn qwen3_coder_says_that_it_has_norms() {
        let message = |more: &str| {
            let json = format!(
                r#"{{"vocab_size": 8, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 8,
                "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 1{more}}}"#
            );
            let config = Config::parse(json.as_bytes()).unwrap();
            build_qwen3(&config, FloatType::F32, 1).map_or_else(|error| error.to_string(), |_| String::new())
        };
        assert_eq!(message(r#", "use_qk_norm": true, "shared_expert_intermediate_size": 0, "qkv_bias": false"#), "");
        let expected = "config.json: use_qk_norm is false; only true is supported";
        assert_eq!(message(r#", "use_qk_norm": false"#), expected);
    }

    #[test]
    fn experts_of_qwen3_vl_are_normalised_and_not_square() {
        assert_eq!(message(r#", "norm_topk_prob": true"#), "");
        let expected = "config.json: text_config.norm_topk_prob is false; only true is supported";
        assert_eq!(message(r#", "norm_topk_prob": false"#), expected);
        for size in [16, 32] {
            let expected = "expected neither hidden_size nor its half";
            let found = message(&format!(r#", "moe_intermediate_size": {size}"#));
            assert_eq!(found, format!("config.json: text_config.moe_intermediate_size is {size}, {expected}"));
        }
    }
}
