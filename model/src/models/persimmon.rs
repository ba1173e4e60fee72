//! Persimmon.
//!
//! Described in adept.ai/blog/persimmon-8b, 2023. Follows `transformers/models/persimmon/modeling_persimmon.py`.
//! Differences from Llama: norms are by mean and variance, with bias, and by default heads of queries and keys have
//! such norms too; the query, key and value of each head are consecutive rows of one tensor; only half of each head is
//! rotated by default; the feed-forward network has no gate, and its activation is the squared ReLU; all layers have
//! biases.

use numbers::FloatType;

use super::decoder::{Decoder, MlpForm, Names, Projections};
use super::{Config, Model, ModelError, neutral};
use crate::layers::{NormForm, QueryKeyNorm, WeightScope};

const NAMES: Names =
    Names { query_norm: "q_layernorm", key_norm: "k_layernorm", last_norm: "final_layernorm", ..Names::LLAMA };

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["partial_rotary_factor", "qk_layernorm"])?;
    let config = &config.or_default("hidden_act", "relu2").or_default("partial_rotary_factor", 0.5);
    let norm = NormForm::layer(config.epsilon_or("layer_norm_eps", 1e-5)?);
    let root = WeightScope::root(dtype, num_ranks);
    let mut decoder = Decoder::new(config, root, norm, config.size("intermediate_size")?)?;
    decoder.names = NAMES;
    decoder.attention.num_key_value_heads = decoder.attention.num_attention_heads;
    decoder.projections = Projections::FusedByHead { qkv: "query_key_value", output: "dense" };
    decoder.set_biases(true);
    if config.flag_or("qk_layernorm", true)? {
        decoder.attention.norm = QueryKeyNorm::Head(norm);
    }
    decoder.mlp_form = MlpForm::Plain { up: "dense_h_to_4h", down: "dense_4h_to_h" };
    decoder.build()
}
