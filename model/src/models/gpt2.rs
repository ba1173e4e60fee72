//! GPT-2.
//!
//! Paper: Radford et al., 2019. Follows `transformers/models/gpt2/modeling_gpt2.py`. Differences from Llama: positions
//! are learned vectors instead of rotations; norms are by mean and variance, with bias; the feed-forward network has no
//! gate; all layers have biases; the weights of queries, keys and values are one tensor; matrices are stored `[in,
//! out]`; embeddings are tied by default.

use numbers::FloatType;

use super::decoder::{Block, Decoder, MlpForm, Names, Projections};
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

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[])?;
    let norm = NormForm::layer(config.number_or("layer_norm_epsilon", 1e-5)?);
    let intermediate_size = config.size_or("n_inner", 4 * config.size("hidden_size")?)?;
    let root = WeightScope::root(dtype, num_ranks);
    let config = &config.or_default("activation_function", "gelu_new");
    let mut decoder = Decoder::new(config, root, norm, intermediate_size)?;
    decoder.names = NAMES;
    decoder.has_transposed_matrices = true;
    decoder.learned_positions = Some(config.size("max_position_embeddings")?);
    decoder.block = Block::pre_norm("ln_1", "ln_2");
    decoder.projections = Projections::Fused { qkv: "c_attn", output: "c_proj" };
    decoder.set_biases(true);
    decoder.mlp_form = MlpForm::Plain { up: "c_fc", down: "c_proj" };
    decoder.layers.iter_mut().for_each(|layer| layer.rotary = None);
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    decoder.build()
}
