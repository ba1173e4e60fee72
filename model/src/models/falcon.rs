//! Falcon.
//!
//! Paper: Almazrouei et al., 2023 (arXiv 2311.16867). Follows `transformers/models/falcon/modeling_falcon.py`.
//! Differences from Llama: attention and feed-forward network run in parallel (`parallel_attn`), after one or two layer
//! norms (by mean and variance); Falcon-7B has a single KV head (`multi_query`), and the new decoder architecture takes
//! the number of KV heads from `num_kv_heads`; the queries, key and value of each KV head are consecutive rows of one
//! tensor; the feed-forward network has no gate; embeddings are tied by default. Checkpoints with ALiBi are refused.

use numbers::FloatType;

use super::decoder::{Block, Decoder, MlpForm, Names, Projections};
use super::{Config, Model, ModelError, neutral};
use crate::graph::Activation;
use crate::layers::{NormForm, WeightScope};

const NAMES: Names = Names {
    base: "transformer",
    embedding: "word_embeddings",
    layers: "h",
    attention: "self_attention",
    last_norm: "ln_f",
    ..Names::LLAMA
};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["bias", "multi_query", "parallel_attn"])?;
    let norm = NormForm::layer(config.epsilon_or("layer_norm_epsilon", 1e-5)?);
    let intermediate_size = config.size_or("ffn_hidden_size", 4 * config.size("hidden_size")?)?;
    let root = WeightScope::root(dtype, num_ranks);
    let mut decoder = Decoder::new(config, root, norm, intermediate_size)?;
    decoder.names = NAMES;
    let is_new = config.flag_or("new_decoder_architecture", false)?;
    let num_heads = decoder.attention.num_attention_heads;
    decoder.attention.num_key_value_heads = if is_new {
        config.size_or("num_kv_heads", num_heads)?
    } else if config.flag_or("multi_query", true)? {
        1
    } else {
        num_heads
    };
    decoder.block = block(config, is_new, decoder.root.is_gguf())?;
    decoder.projections = Projections::FusedByHead { qkv: "query_key_value", output: "dense" };
    let has_bias = config.flag_or("bias", false)?;
    decoder.set_biases(has_bias);
    if !config.has("activation") {
        decoder.mlp.activation = Activation::Gelu;
    }
    decoder.mlp_form = MlpForm::Plain { up: "dense_h_to_4h", down: "dense_4h_to_h" };
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    decoder.build()
}

fn block(config: &Config, is_new: bool, is_gguf: bool) -> Result<Block, ModelError> {
    // The tensors of GGUF files have names of their own only for the first of two norms.
    let before_mlp = if is_gguf { "input_layernorm" } else { "ln_mlp" };
    let is_parallel = config.flag_or("parallel_attn", true)?;
    let num_norms = config.size_or("num_ln_in_parallel_attn", if is_new { 2 } else { 1 })?;
    Ok(match (is_parallel, is_new && num_norms == 2) {
        (true, true) => Block::Parallel { before_attention: "ln_attn", before_mlp },
        (true, false) => Block::Parallel { before_attention: "input_layernorm", before_mlp: "input_layernorm" },
        (false, false) => Block::PRE_NORM,
        (false, true) => return Err(config.invalid("parallel_attn", false, "true with new_decoder_architecture")),
    })
}
