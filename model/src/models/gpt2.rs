//! GPT-2, and StarCoder 1 (GPT BigCode).
//!
//! Papers: Radford et al., 2019; Li et al., 2023 (arXiv 2305.06161). Follows
//! `transformers/models/gpt2/modeling_gpt2.py` and `gpt_bigcode/modeling_gpt_bigcode.py`. Differences from Llama:
//! positions are learned vectors instead of rotations; norms are by mean and variance, with bias; the feed-forward
//! network has no gate; all layers have biases; the weights of queries, keys and values are one tensor; embeddings are
//! tied by default. In GPT-2, matrices are stored `[in, out]`. In StarCoder, all heads share one key and one value
//! (`multi_query`).

use numbers::FloatType;

use super::decoder::{Block, Decoder, LearnedPositions, MlpForm, Names, Projections};
use super::{Config, Model, ModelError, neutral};
use crate::layers::{NormForm, WeightScope};

const NAMES: Names = Names {
    base: "transformer",
    embedding: "wte",
    positions: "wpe",
    layers: "h",
    attention: "attn",
    last_norm: "ln_f",
    ..Names::LLAMA
};

/// Builds GPT-2; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[])?;
    let mut decoder = decoder(&config.or_default("activation_function", "gelu_new"), dtype, num_ranks)?;
    decoder.has_transposed_matrices = true;
    decoder.build()
}

/// Builds GPT BigCode; see [`super::build`].
pub(super) fn build_bigcode(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["multi_query"])?;
    let mut decoder = decoder(&config.or_default("activation_function", "gelu_pytorch_tanh"), dtype, num_ranks)?;
    let num_heads = decoder.attention.num_attention_heads;
    let is_shared = config.flag_or("multi_query", true)?;
    decoder.attention.num_key_value_heads = if is_shared { 1 } else { num_heads };
    if !is_shared {
        decoder.projections = Projections::FusedByHead { qkv: "c_attn", output: "c_proj" };
    }
    decoder.build()
}

fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    let norm = NormForm::layer(config.epsilon_or("layer_norm_epsilon", 1e-5)?);
    let intermediate_size = config.size_or("n_inner", 4 * config.size("hidden_size")?)?;
    let root = WeightScope::root(dtype, num_ranks);
    let mut decoder = Decoder::new(config, root, norm, intermediate_size)?;
    decoder.names = NAMES;
    let num_positions = config.size("max_position_embeddings")?;
    decoder.learned_positions = Some(LearnedPositions { num_positions, first_row: 0 });
    decoder.block = Block::pre_norm("ln_1", "ln_2");
    decoder.projections = Projections::Fused { qkv: "c_attn", output: "c_proj" };
    decoder.set_biases(true);
    decoder.mlp_form = MlpForm::Plain { up: "c_fc", down: "c_proj" };
    decoder.layers.iter_mut().for_each(|layer| layer.rotary = None);
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    Ok(decoder)
}
