//! Mellum 2.
//!
//! Described in huggingface.co/JetBrains/Mellum2-12B-A2.5B-Base, 2026. Follows
//! `transformers/models/mellum/modeling_mellum.py`. Differences from Qwen 3 with experts: layers may have a window, and
//! those with a window have rotary embeddings of their own; `mlp_layer_types` says which layers have experts. The
//! layers after the last one, which predict further tokens, are not read.

use std::sync::Arc;

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral, qwen_moe, rope_config, sigmoid_experts};
use crate::graph::Pairing;
use crate::layers::{QueryKeyNorm, RotaryScaling};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood =
        ["attention_bias", "layer_types", "mlp_layer_types", "num_experts", "num_local_experts", "sliding_window"];
    neutral::require(config, &understood)?;
    let config = &config.or_default("norm_topk_prob", true).or_default("rope_theta", 500_000.0);
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    let sliding = decoder.set_windows(config, |_| false)?;
    let head_dim = decoder.attention.head_dim;
    let local = rope_config::read_kind(config, head_dim, "sliding_attention")?;
    let local = Arc::new(match local {
        Some(local) => local,
        None => RotaryScaling::Default.spec(10_000.0, head_dim, Pairing::Halves),
    });
    qwen_moe::set_experts(&mut decoder, config, None)?;
    let sparse = sigmoid_experts::sparse_layers(config, decoder.layers.len())?;
    for (layer, (is_sliding, is_sparse)) in decoder.layers.iter_mut().zip(sliding.into_iter().zip(sparse)) {
        layer.has_experts = is_sparse;
        if is_sliding {
            layer.rotary = Some(Arc::clone(&local));
        }
    }
    decoder.build()
}
