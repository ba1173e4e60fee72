//! GPT-NeoX and Pythia.
//!
//! Papers: Black et al., 2022 (arXiv 2204.06745); Biderman et al., 2023 (arXiv 2304.01373). Follows
//! `transformers/models/gpt_neox/modeling_gpt_neox.py`. Differences from Llama: attention and feed-forward network run
//! in parallel, each after its own norm by mean and variance (unless `use_parallel_residual` is false); only part of
//! each head is rotated; layers have biases; the feed-forward network has no gate; the query, key and value of each
//! head are consecutive rows of one tensor.

use numbers::FloatType;

use super::decoder::{Block, Decoder, MlpForm, Names, Projections};
use super::{Config, Model, ModelError, neutral};
use crate::layers::{NormForm, WeightScope};

const NAMES: Names = Names {
    base: "gpt_neox",
    embedding: "embed_in",
    attention: "attention",
    last_norm: "final_layer_norm",
    head: "embed_out",
    ..Names::LLAMA
};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "partial_rotary_factor", "rotary_pct", "use_parallel_residual"])?;
    decoder(config, dtype, num_ranks)?.build()
}

fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    let config = &config.or_default("hidden_act", "gelu").or_default("partial_rotary_factor", 0.25);
    let norm = NormForm::layer(config.epsilon_or("layer_norm_eps", 1e-5)?);
    let root = WeightScope::root(dtype, num_ranks);
    let mut decoder = Decoder::new(config, root, norm, config.size("intermediate_size")?)?;
    decoder.names = NAMES;
    decoder.attention.num_key_value_heads = decoder.attention.num_attention_heads;
    if config.flag_or("use_parallel_residual", true)? {
        let (before_attention, before_mlp) = ("input_layernorm", "post_attention_layernorm");
        decoder.block = Block::Parallel { before_attention, before_mlp };
    }
    decoder.projections = Projections::FusedByHead { qkv: "query_key_value", output: "dense" };
    let has_bias = config.flag_or("attention_bias", true)?;
    (decoder.attention.has_bias, decoder.attention.has_output_bias, decoder.mlp.has_bias) = (has_bias, has_bias, true);
    decoder.mlp_form = MlpForm::Plain { up: "dense_h_to_4h", down: "dense_4h_to_h" };
    Ok(decoder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Activation;

    #[test]
    fn defaults_are_those_of_transformers() {
        let of = |keys: &str| {
            let json = format!(
                r#"{{"vocab_size": 8, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1,
                "intermediate_size": 8{keys}}}"#
            );
            let decoder = decoder(&Config::parse(json.as_bytes()).unwrap(), FloatType::F32, 1).unwrap();
            let num_frequencies = decoder.layers[0].rotary.as_ref().map(|rotary| rotary.frequencies.len());
            (decoder.mlp.activation, num_frequencies)
        };
        // Heads have 16 values, and a frequency belongs to two of them.
        assert_eq!(of(""), (Activation::Gelu, Some(2)));
        assert_eq!(of(r#", "hidden_act": "silu", "rotary_pct": 1.0"#), (Activation::Silu, Some(8)));
        assert_eq!(of(r#", "rope_parameters": {"partial_rotary_factor": 0.5}"#), (Activation::Gelu, Some(4)));
    }
}
