//! Gemma 4, text.
//!
//! Described in ai.google.dev/gemma/docs/core. Follows `transformers/models/gemma4/modeling_gemma4.py` and
//! `gemma4_unified` (12B). Differences from Gemma 3: norms multiply by their weight; values are normalised too, and
//! scores have no factor; layers without a window have heads of another size, of which only some pairs are rotated, and
//! may use keys as values; the last layers may attend to the keys and values of earlier ones; each layer may read a
//! vector of the token (`hidden_size_per_layer_input`); a mixture of experts may stand beside the feed-forward network;
//! the output of a layer is multiplied by a learned number.

use std::sync::Arc;

use numbers::FloatType;
use serde_json::{Value, json};

use super::decoder::{BesideNorms, Decoder, ExpertsForm};
use super::{Config, Model, ModelError, gemma, gemma2, neutral, rope_config};
use crate::layers::{AttentionForm, ExpertNames, LayerInputsForm, NormForm, QueryKeyNorm, RouterForm, RouterScales};

/// The keys that all other families refuse.
const UNDERSTOOD: [&str; 13] = [
    "attention_bias",
    "attention_k_eq_v",
    "enable_moe_block",
    "final_logit_softcapping",
    "global_head_dim",
    "hidden_size_per_layer_input",
    "layer_types",
    "num_experts",
    "num_global_key_value_heads",
    "num_kv_shared_layers",
    "per_layer_config",
    "sliding_window",
    "use_double_wide_mlp",
];
/// The kinds of layers in `layer_types` and `rope_parameters`: without a window, and with one.
const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let config = config.or_default("hidden_size_per_layer_input", 256).or_default("sliding_window", 512);
    decoder(&config, dtype, num_ranks)?.build()
}

/// Builds Gemma 4 12B, which has neither experts nor vectors of layers; see [`super::build`].
pub(super) fn build_unified(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    config.require_fixed(&[("enable_moe_block", "false"), ("hidden_size_per_layer_input", "0")])?;
    decoder(&config.or_default("sliding_window", 1024), dtype, num_ranks)?.build()
}

fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    neutral::require(config, &[&UNDERSTOOD[..], &["use_bidirectional_attention"]].concat())?;
    // Images are not served, so their tokens may see each other.
    config.require_fixed(&[("use_bidirectional_attention", "\"vision\"")])?;
    let rotary = json!({"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
        "rope_theta": 1e6}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}});
    let config = &config.or_default("head_dim", 256).or_default("rope_parameters", rotary);
    let mut decoder = gemma::decoder(config, dtype, num_ranks)?;
    gemma2::set_block(&mut decoder, config)?;
    decoder.norm.offset = 0.0;
    decoder.layer_factor = Some("layer_scalar");
    decoder.attention = AttentionForm {
        norm: QueryKeyNorm::Head(decoder.norm),
        value_norm: Some(decoder.norm.eps),
        scale: 1.0,
        ..decoder.attention
    };
    set_layers(&mut decoder, config)?;
    set_shared(&mut decoder, config)?;
    set_layer_inputs(&mut decoder, config, dtype)?;
    if config.flag_or("enable_moe_block", false)? {
        set_experts(&mut decoder, config)?;
    }
    Ok(decoder)
}

/// Sets the window, the heads and the rotary embedding of each layer. The last layer never has a window.
///
/// # Errors
/// When a key is missing or malformed. The message names the key.
fn set_layers(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    decoder.set_windows(config, |layer| (layer + 1) % 6 != 0)?;
    check_layers(config, decoder.layers.len())?;
    if let Some(last) = decoder.layers.last_mut() {
        last.window = None;
    }
    let has_keys_as_values = config.flag_or("attention_k_eq_v", false)?;
    let own = decoder.attention;
    for (index, layer) in decoder.layers.iter_mut().enumerate() {
        let is_full = layer.window.is_none();
        let [head_dim, num_key_value_heads] = heads(config, index, is_full, &own)?;
        let kind = KINDS[usize::from(!is_full)];
        let rotary = rope_config::read_kind(config, head_dim, kind)?;
        layer.rotary = Some(Arc::new(rotary.ok_or_else(|| config.missing(&format!("rope_parameters.{kind}")))?));
        let has_keys_as_values = has_keys_as_values && is_full;
        layer.attention = Some(AttentionForm { head_dim, num_key_value_heads, has_keys_as_values, ..own });
    }
    Ok(())
}

/// Refuses layers of `per_layer_config` that the model does not have.
fn check_layers(config: &Config, num_layers: usize) -> Result<(), ModelError> {
    let layers = config.object("per_layer_config")?.into_iter().flatten();
    let is_layer = |key: &str| key.parse().is_ok_and(|index: usize| index < num_layers);
    let Some((key, value)) = layers.into_iter().find(|(key, value)| !is_layer(key) || !value.is_object()) else {
        return Ok(());
    };
    let expected = format!("an object at the index of one of {num_layers} layers");
    Err(config.invalid(&format!("per_layer_config.{key}"), value, &expected))
}

/// Returns the size of the heads of a layer, and its number of KV heads. Transformers writes those that differ from
/// `head_dim` and `num_key_value_heads` to `per_layer_config`, and published files have keys for layers without a
/// window.
fn heads(config: &Config, layer: usize, is_full: bool, own: &AttentionForm) -> Result<[usize; 2], ModelError> {
    let [head_dim, num_key_value_heads] = [own.head_dim, own.num_key_value_heads];
    if let Some(layers) = config.object("per_layer_config")? {
        // Transformers writes indices of equal length, such as 05.
        let of_layer = layers.iter().find(|(key, _)| key.parse() == Ok(layer));
        let Some((_, Value::Object(keys))) = of_layer else { return Ok([head_dim, num_key_value_heads]) };
        let of_layer = config.nested(&format!("per_layer_config.{layer}"), keys.clone());
        of_layer.require_known(&["head_dim", "num_key_value_heads"])?;
        let num_key_value_heads = of_layer.size_or("num_key_value_heads", num_key_value_heads)?;
        return Ok([of_layer.size_or("head_dim", head_dim)?, num_key_value_heads]);
    }
    if !is_full {
        return Ok([head_dim, num_key_value_heads]);
    }
    let of_full = config.size_or("num_global_key_value_heads", num_key_value_heads)?;
    let has_keys_as_values = config.flag_or("attention_k_eq_v", false)?;
    let num_key_value_heads = if has_keys_as_values { of_full } else { num_key_value_heads };
    Ok([config.size_or("global_head_dim", 512)?, num_key_value_heads])
}

/// Makes the last `num_kv_shared_layers` layers attend to the keys and values of the last layer before them that has a
/// window if they have one.
///
/// # Errors
/// When there is no such layer, or a key is malformed.
fn set_shared(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    const SHARED: &str = "num_kv_shared_layers";
    let num_shared = config.count_or(SHARED, 0)?;
    let is_double = config.flag_or("use_double_wide_mlp", false)?;
    let num_layers = decoder.layers.len();
    let fewer = || config.invalid(SHARED, num_shared, "so few that each kind of layer occurs before these layers");
    let (first, last) = decoder.layers.split_at_mut(num_layers.checked_sub(num_shared).ok_or_else(fewer)?);
    for layer in last {
        let source = first.iter().rposition(|source| source.window == layer.window);
        layer.shares = Some(source.ok_or_else(fewer)?);
        layer.intermediate_size = is_double.then_some(2 * decoder.mlp.intermediate_size);
    }
    Ok(())
}

/// Gives each layer a vector of the token, unless its size is 0.
fn set_layer_inputs(decoder: &mut Decoder, config: &Config, dtype: FloatType) -> Result<(), ModelError> {
    let size = config.count_or("hidden_size_per_layer_input", 0)?;
    if size == 0 {
        return Ok(());
    }
    decoder.layer_inputs = Some(LayerInputsForm {
        hidden_size: decoder.attention.hidden_size,
        size,
        vocab_size: config.size_or("vocab_size_per_layer_input", decoder.vocab_size)?,
        multiplier: dtype.round((size as f32).sqrt()),
        norm: NormForm { offset: 0.0, ..decoder.norm },
        activation: decoder.mlp.activation,
    });
    Ok(())
}

/// Sets a mixture of experts beside the feed-forward network of every layer.
fn set_experts(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    let scales = RouterScales { input: "router.scale", eps: decoder.norm.eps, output: "router.per_expert_scale" };
    let router = RouterForm::softmax("router.proj", config.size("top_k_experts")?, true);
    decoder.experts = Some(ExpertsForm {
        scope: "",
        names: ExpertNames::Rows(["experts.gate_up_proj", "experts.down_proj"]),
        gating: decoder.mlp.activation.into(),
        intermediate_size: config.size("moe_intermediate_size")?,
        num_experts: config.size("num_experts")?,
        router: RouterForm { scales: Some(scales), ..router },
        shared: None,
    });
    decoder.beside = Some(BesideNorms {
        after_mlp: "post_feedforward_layernorm_1",
        before_experts: "pre_feedforward_layernorm_2",
        after_experts: "post_feedforward_layernorm_2",
    });
    decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
    Ok(())
}

#[cfg(test)]
mod tests;
