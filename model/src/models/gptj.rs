//! GPT-J and CodeGen.
//!
//! Described in github.com/kingoflolz/mesh-transformer-jax, 2021; Nijkamp et al., 2022 (arXiv 2203.13474). Follows
//! `transformers/models/gptj/modeling_gptj.py` and `codegen/modeling_codegen.py`. Differences from Llama: attention and
//! feed-forward network both read the state after one norm, which is by mean and variance; the first `rotary_dim`
//! values of each head are rotated, in pairs of adjacent values; the feed-forward network has no gate; it and the
//! output head have biases. In CodeGen, queries, values and keys are one tensor of four blocks.

use std::sync::Arc;

use numbers::FloatType;

use super::decoder::{Block, Decoder, MlpForm, Names, Projections};
use super::{Config, Model, ModelError, neutral};
use crate::graph::Pairing;
use crate::layers::{NormForm, RotaryScaling, WeightScope};

const NAMES: Names = Names {
    base: "transformer",
    embedding: "wte",
    layers: "h",
    attention: "attn",
    output: "out_proj",
    last_norm: "ln_f",
    ..Names::LLAMA
};
/// The number of blocks of CodeGen's projections.
const NUM_BLOCKS: usize = 4;

/// Builds GPT-J; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    decoder(config, dtype, num_ranks)?.build()
}

/// Builds CodeGen; see [`super::build`].
pub(super) fn build_codegen(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let mut decoder = decoder(config, dtype, num_ranks)?;
    let num_heads = decoder.attention.num_attention_heads;
    if !num_heads.is_multiple_of(NUM_BLOCKS) {
        return Err(config.invalid("num_attention_heads", num_heads, "a multiple of 4"));
    }
    decoder.projections = Projections::FusedInBlocks { qkv: "qkv_proj", num_blocks: NUM_BLOCKS };
    decoder.build()
}

fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    neutral::require(config, &["rotary_dim"])?;
    let config = &config.or_default("activation_function", "gelu_new");
    let norm = NormForm::layer(config.epsilon_or("layer_norm_epsilon", 1e-5)?);
    let intermediate_size = config.size_or("n_inner", 4 * config.size("hidden_size")?)?;
    let mut decoder = Decoder::new(config, WeightScope::root(dtype, num_ranks), norm, intermediate_size)?;
    decoder.names = NAMES;
    decoder.block = Block::Parallel { before_attention: "ln_1", before_mlp: "ln_1" };
    decoder.mlp.has_bias = true;
    decoder.mlp_form = MlpForm::Plain { up: "fc_in", down: "fc_out" };
    decoder.has_head_bias = true;
    let (rotary_dim, head_dim) = (config.size_or("rotary_dim", 64)?, decoder.attention.head_dim);
    if rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
        let expected = format!("an even number up to {head_dim}, the size of a head");
        return Err(config.invalid("rotary_dim", rotary_dim, &expected));
    }
    let rotary = Arc::new(RotaryScaling::Default.spec(10_000.0, rotary_dim, Pairing::Neighbours));
    decoder.layers.iter_mut().for_each(|layer| layer.rotary = Some(Arc::clone(&rotary)));
    Ok(decoder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(more: &str) -> String {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2,
            "intermediate_size": 8{more}}}"#
        );
        let model = build_codegen(&Config::parse(json.as_bytes()).unwrap(), FloatType::F32, 1);
        model.unwrap_err().to_string()
    }

    #[test]
    fn other_values_are_refused_by_name() {
        insta::assert_snapshot!(
            message(r#", "rotary_dim": 7"#),
            @"config.json: rotary_dim is 7, expected an even number up to 8, the size of a head"
        );
        insta::assert_snapshot!(
            message(r#", "rotary_dim": 16"#),
            @"config.json: rotary_dim is 16, expected an even number up to 8, the size of a head"
        );
        insta::assert_snapshot!(
            message(r#", "rotary_dim": 4"#),
            @"config.json: num_attention_heads is 2, expected a multiple of 4"
        );
    }
}
