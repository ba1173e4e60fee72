//! StableLM 2 and 3B, Stable Code.
//!
//! Paper: Bellagente et al., 2024 (arXiv 2402.17834). Follows `transformers/models/stablelm/modeling_stablelm.py`.
//! Differences from Llama: norms are by mean and variance, with bias; by default only a quarter of each head is
//! rotated; queries, keys and values may have biases (`use_qkv_bias`); each head of the queries and keys may have a
//! norm of its own without bias (`qk_layernorm`); attention and feed-forward network may run in parallel after one norm
//! (`use_parallel_residual`).

use numbers::FloatType;

use super::decoder::{Block, Decoder};
use super::{Config, Model, ModelError, neutral};
use crate::layers::{NormForm, NormKind, QueryKeyNorm, WeightScope};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["partial_rotary_factor", "qk_layernorm", "use_parallel_residual", "use_qkv_bias"])?;
    let config = &config.or_default("partial_rotary_factor", 0.25);
    let norm = NormForm::layer(config.epsilon_or("layer_norm_eps", 1e-5)?);
    let root = WeightScope::root(dtype, num_ranks);
    let mut decoder = Decoder::new(config, root, norm, config.size("intermediate_size")?)?;
    decoder.attention.has_bias = config.flag_or("use_qkv_bias", false)?;
    if config.flag_or("qk_layernorm", false)? {
        let kind = NormKind::Layer { has_bias: false };
        decoder.attention.norm = QueryKeyNorm::Stacked(NormForm { kind, ..norm });
        (decoder.names.query_norm, decoder.names.key_norm) = ("q_layernorm", "k_layernorm");
    }
    if config.flag_or("use_parallel_residual", false)? {
        decoder.block = Block::Parallel { before_attention: "input_layernorm", before_mlp: "input_layernorm" };
    }
    decoder.build()
}
