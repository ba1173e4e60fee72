//! Phi 1, 1.5 and 2.
//!
//! Papers: Gunasekar et al., 2023 (arXiv 2306.11644); Li et al., 2023 (arXiv 2309.05463). Follows
//! `transformers/models/phi/modeling_phi.py`. Differences from Llama: attention and feed-forward network both read the
//! state after one norm, which is by mean and variance; all layers have biases, the output head too; the feed-forward
//! network has no gate; by default only half of each head is rotated; heads of queries and keys may be normalised by
//! mean and variance (`qk_layernorm`).

use numbers::FloatType;

use super::decoder::{Block, Decoder, MlpForm, Names};
use super::{Config, Model, ModelError, neutral};
use crate::layers::{NormForm, QueryKeyNorm, WeightScope};

const NAMES: Names = Names {
    output: "dense",
    query_norm: "q_layernorm",
    key_norm: "k_layernorm",
    last_norm: "final_layernorm",
    ..Names::LLAMA
};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["partial_rotary_factor", "qk_layernorm"])?;
    let config = &config.or_default("hidden_act", "gelu_new").or_default("partial_rotary_factor", 0.5);
    let norm = NormForm::layer(config.epsilon_or("layer_norm_eps", 1e-5)?);
    let root = WeightScope::root(dtype, num_ranks);
    let mut decoder = Decoder::new(config, root, norm, config.size("intermediate_size")?)?;
    decoder.names = NAMES;
    decoder.block = Block::Parallel { before_attention: "input_layernorm", before_mlp: "input_layernorm" };
    decoder.set_biases(true);
    decoder.has_head_bias = true;
    if config.flag_or("qk_layernorm", false)? {
        decoder.attention.norm = QueryKeyNorm::Head(norm);
    }
    decoder.mlp_form = MlpForm::Plain { up: "fc1", down: "fc2" };
    decoder.build()
}
