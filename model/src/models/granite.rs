//! Granite 3 with and without experts, Granite with sliding windows, and HyperCLOVA X.
//!
//! Described in IBM's Granite 3.0 report, 2024, and in Naver's HyperCLOVA X report, 2025 (arXiv 2506.22403). Follows
//! `transformers/models/granite/modeling_granite.py`, `granitemoe`, `granitemoeshared`, `granite_swa`,
//! `granitemoe_swa` and `hyperclovax`. Differences from Llama: the embeddings, the attention scores, and the outputs of
//! attention and feed-forward network are multiplied by factors; logits are divided by `logits_scaling`. In HyperCLOVA
//! X, logits are multiplied by `logits_scaling`, and by default there are also norms after attention and after the
//! feed-forward network (`use_post_norm`). In the models with experts, all layers have them; their weights are a
//! softmax over the chosen ones, and there may be a shared expert. In the models with sliding windows, each head has a
//! sink. By default three of every four layers have a window. Each layer may have its own rotary base or none
//! (`layer_rope_theta`).

use std::sync::Arc;

use numbers::FloatType;

use super::decoder::{Block, Decoder, ExpertsForm, MlpForm, SharedForm};
use super::{Config, Model, ModelError, neutral, rope_config};
use crate::graph::Pairing;
use crate::layers::{ExpertNames, RouterForm};

/// Builds Granite; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &FACTORS)?;
    granite(config, dtype, num_ranks)?.build()
}

/// Builds Granite with experts, and with a shared expert if it has one; see [`super::build`].
pub(super) fn build_moe(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[&FACTORS[..], &EXPERTS].concat())?;
    let mut decoder = granite(config, dtype, num_ranks)?;
    let names = match decoder.root.is_gguf() {
        true => ExpertNames::Apart { has_biases: false },
        false => ExpertNames::Rows(["input_linear.weight", "output_linear.weight"]),
    };
    set_experts(&mut decoder, config, ("router.layer", names))?;
    decoder.build()
}

fn set_experts(
    decoder: &mut Decoder,
    config: &Config,
    (router, names): (&'static str, ExpertNames),
) -> Result<(), ModelError> {
    if !decoder.root.is_gguf() {
        decoder.mlp_form = MlpForm::GatedFused { gate_up: "input_linear", down: "output_linear" };
    }
    let shared = config.count_or("shared_intermediate_size", 0)?;
    decoder.experts = Some(ExpertsForm {
        scope: "block_sparse_moe",
        names,
        gating: decoder.mlp.activation.into(),
        intermediate_size: decoder.mlp.intermediate_size,
        num_experts: config.size_or("num_local_experts", 8)?,
        router: RouterForm::softmax(router, config.size_or("num_experts_per_tok", 2)?, true),
        shared: (shared > 0).then_some(SharedForm { scope: "shared_mlp", intermediate_size: shared, gate: None }),
    });
    decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
    Ok(())
}

fn granite(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    let mut decoder = decoder(config, dtype, num_ranks)?;
    set_scales(&mut decoder, config)?;
    Ok(decoder)
}

/// Sets the factors of attention scores and logits, as in Granite.
fn set_scales(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    decoder.attention.scale = config.number_or("attention_multiplier", 1.0)? as f32;
    decoder.logits_multiplier = 1.0 / config.number_or("logits_scaling", 1.0)? as f32;
    Ok(())
}

/// Builds HyperCLOVA X; see [`super::build`].
pub(super) fn build_hyperclovax(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[&FACTORS[..], &["use_post_norm"]].concat())?;
    let mut decoder = decoder(config, dtype, num_ranks)?;
    if let Some(multiplier) = config.number("attention_multiplier")? {
        decoder.attention.scale = multiplier as f32;
    }
    decoder.logits_multiplier = config.number_or("logits_scaling", 1.0)? as f32;
    if config.flag_or("use_post_norm", true)? {
        decoder.block = Block::Sequential {
            before_attention: Some("input_layernorm"),
            after_attention: Some("post_norm1"),
            before_mlp: Some("post_attention_layernorm"),
            after_mlp: Some("post_norm2"),
        };
    }
    decoder.build()
}

/// Builds Granite with sliding windows; see [`super::build`].
pub(super) fn build_swa(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[&FACTORS[..], &WINDOWS].concat())?;
    let config = &config.or_default("rms_norm_eps", 1e-5).or_default("tie_word_embeddings", true);
    let mut decoder = granite(config, dtype, num_ranks)?;
    set_windows(&mut decoder, config)?;
    decoder.build()
}

/// Builds Granite with experts and sliding windows; see [`super::build`].
pub(super) fn build_moe_swa(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[&FACTORS[..], &EXPERTS, &WINDOWS].concat())?;
    let mut decoder = granite(config, dtype, num_ranks)?;
    set_experts(&mut decoder, config, ("router", ExpertNames::Rows(["experts.gate_up_proj", "experts.down_proj"])))?;
    set_windows(&mut decoder, config)?;
    decoder.build()
}

/// Sets sinks, the windows of layers and their rotary embeddings.
fn set_windows(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    const THETAS: &str = "layer_rope_theta";
    decoder.attention.has_sinks = true;
    decoder.set_windows(&config.or_default("sliding_window", 128), |layer| layer % 4 != 0)?;
    if !config.has(THETAS) {
        return Ok(());
    }
    let (thetas, head_dim) = (config.numbers(THETAS)?, decoder.attention.head_dim);
    if thetas.len() != decoder.layers.len() {
        let expected = format!("one for each of {} layers", decoder.layers.len());
        return Err(config.invalid(THETAS, format!("{} numbers", thetas.len()), &expected));
    }
    for (layer, theta) in decoder.layers.iter_mut().zip(thetas) {
        let config = config.with_rotary_key("rope_theta", theta)?;
        let rotary = || rope_config::read(&config, head_dim, Pairing::Halves);
        layer.rotary = if theta == 0.0 { None } else { Some(Arc::new(rotary()?)) };
    }
    Ok(())
}

/// Keys that all families of this file understand.
const FACTORS: [&str; 6] = [
    "attention_bias",
    "attention_multiplier",
    "embedding_multiplier",
    "logits_scaling",
    "mlp_bias",
    "residual_multiplier",
];
/// Keys of the models with experts, and of those with sliding windows.
const EXPERTS: [&str; 2] = ["num_local_experts", "shared_intermediate_size"];
const WINDOWS: [&str; 3] = ["layer_rope_theta", "layer_types", "sliding_window"];

fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.embedding_multiplier = config.number_or("embedding_multiplier", 1.0)? as f32;
    decoder.residual_multiplier = config.number_or("residual_multiplier", 1.0)? as f32;
    Ok(decoder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(more: &str) -> String {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2,
            "intermediate_size": 8{more}}}"#
        );
        let model = build_swa(&Config::parse(json.as_bytes()).unwrap(), FloatType::F32, 1);
        model.unwrap_err().to_string()
    }

    #[test]
    fn other_values_are_refused_by_name() {
        insta::assert_snapshot!(
            message(r#", "layer_rope_theta": [1]"#),
            @"config.json: layer_rope_theta is 1 numbers, expected one for each of 2 layers"
        );
        insta::assert_snapshot!(
            message(r#", "layer_rope_theta": [0, -1]"#),
            @"config.json: rope_theta is -1, expected a positive number"
        );
        insta::assert_snapshot!(
            message(r#", "use_post_norm": true"#),
            @"config.json: use_post_norm is true; only false is supported"
        );
    }
}
