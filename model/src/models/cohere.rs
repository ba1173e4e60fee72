//! Command R and R+ (Cohere), and Command R7B and A (Cohere 2).
//!
//! Described on docs.cohere.com. Follows `transformers/models/cohere/modeling_cohere.py` and
//! `cohere2/modeling_cohere2.py`. Differences from Llama: attention and feed-forward network both read the state after
//! one norm, which is by mean and variance without bias; rotary embeddings rotate pairs of adjacent values of a head;
//! logits are multiplied by a factor; embeddings are tied by default. R+ normalises each head of queries and keys with
//! its own weights. In Cohere 2, by default three of every four layers have a window, and only layers with a window
//! have rotary positions.

use numbers::FloatType;

use super::decoder::{Block, Decoder};
use super::{Config, Model, ModelError, neutral};
use crate::layers::{NormForm, NormKind, QueryKeyNorm, WeightScope};

/// Builds Cohere; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "logit_scale", "use_qk_norm"])?;
    let mut decoder = decoder(config, WeightScope::root(dtype, num_ranks))?;
    if config.flag_or("use_qk_norm", false)? {
        decoder.attention.norm = QueryKeyNorm::EachHead(decoder.norm);
    }
    decoder.build()
}

/// Builds Cohere 2; see [`super::build`].
pub(super) fn build_cohere2(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood = ["attention_bias", "layer_types", "logit_scale", "sliding_window", "sliding_window_pattern"];
    neutral::require(config, &understood)?;
    let mut decoder = decoder(config, WeightScope::root(dtype, num_ranks))?;
    let pattern = config.size_or("sliding_window_pattern", 4)?;
    let sliding = decoder.set_windows(config, |layer| (layer + 1) % pattern != 0)?;
    for (layer, is_sliding) in decoder.layers.iter_mut().zip(sliding) {
        layer.rotary = layer.rotary.take().filter(|_| is_sliding);
    }
    decoder.build()
}

fn decoder(config: &Config, root: WeightScope) -> Result<Decoder, ModelError> {
    let kind = NormKind::Layer { has_bias: false };
    let norm = NormForm { kind, ..NormForm::layer(config.epsilon_or("layer_norm_eps", 1e-5)?) };
    let mut decoder = Decoder::new(config, root, norm, config.size("intermediate_size")?)?;
    decoder.block = Block::Parallel { before_attention: "input_layernorm", before_mlp: "input_layernorm" };
    decoder.rotate_neighbours(config)?;
    decoder.logits_multiplier = config.number_or("logit_scale", 0.0625)? as f32;
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    Ok(decoder)
}
