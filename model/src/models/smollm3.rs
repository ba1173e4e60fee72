//! SmolLM 3.
//!
//! Described in huggingface.co/blog/smollm3; layers without positions are from Yang et al., 2025 (arXiv 2501.18795).
//! Follows `transformers/models/smollm3/modeling_smollm3.py`. Differences from Llama: by default every fourth layer has
//! no rotary positions (`no_rope_layers` marks such layers by a 0), layers may have a window, and embeddings are tied
//! by default.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood = [
        "attention_bias",
        "layer_types",
        "mlp_bias",
        "no_rope_layer_interval",
        "no_rope_layers",
        "sliding_window",
        "use_sliding_window",
    ];
    neutral::require(config, &understood)?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    let has_rotary = layers_with_rotary(config, decoder.layers.len())?;
    let has_window = config.flag_or("use_sliding_window", false)? && config.has("sliding_window");
    let sliding = decoder.set_windows(config, |layer| has_window && !has_rotary[layer])?;
    for (idx, layer) in decoder.layers.iter_mut().enumerate() {
        layer.rotary = layer.rotary.take().filter(|_| has_rotary[idx]);
        layer.window = layer.window.filter(|_| has_window && sliding[idx]);
    }
    decoder.build()
}

/// Returns, for each layer, true if it has rotary positions.
pub(super) fn layers_with_rotary(config: &Config, num_layers: usize) -> Result<Vec<bool>, ModelError> {
    let interval = config.size_or("no_rope_layer_interval", 4)?;
    if !config.has("no_rope_layers") {
        return Ok((1..=num_layers).map(|number| number % interval != 0).collect());
    }
    let flags = config.numbers("no_rope_layers")?;
    if flags.len() != num_layers {
        let expected = format!("one for each of {num_layers} layers");
        return Err(config.invalid("no_rope_layers", format!("{} numbers", flags.len()), &expected));
    }
    Ok(flags.into_iter().map(|flag| flag != 0.0).collect())
}
