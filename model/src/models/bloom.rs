//! BLOOM, and MPT.
//!
//! Papers: BigScience, 2022 (arXiv 2211.05100); attention with linear biases is from Press et al., 2021 (arXiv
//! 2108.12409). MPT is described in databricks.com/blog/mpt-7b. Follows `transformers/models/bloom/modeling_bloom.py`
//! and `mpt/modeling_mpt.py`. Differences from Llama: keys are not rotated, and each head lowers the score of a key in
//! proportion to its distance (`Slopes`); norms are by mean and variance; the feed-forward network has no gate;
//! embeddings are tied by default. In BLOOM, layers and norms have biases, one more norm follows the embedding, and
//! the query, key and value of each head are consecutive rows of one tensor. In MPT, layers and norms have no biases,
//! and queries, keys and values are one tensor and may be clipped.

use numbers::FloatType;

use super::decoder::{Block, Decoder, MlpForm, Names, Projections};
use super::{Config, Model, ModelError, neutral};
use crate::graph::{Activation, Slopes};
use crate::layers::{NormForm, NormKind, WeightScope};

const BLOOM: Names = Names {
    base: "transformer",
    embedding: "word_embeddings",
    layers: "h",
    attention: "self_attention",
    last_norm: "ln_f",
    ..Names::LLAMA
};
const MPT: Names = Names {
    base: "transformer",
    embedding: "wte",
    layers: "blocks",
    attention: "attn",
    mlp: "ffn",
    last_norm: "norm_f",
    ..Names::LLAMA
};
/// Keys of BLOOM, each with the only value that is served.
const BLOOM_FIXED: [(&str, &str); 2] =
    [("apply_residual_connection_post_layernorm", "false"), ("slow_but_exact", "false")];
/// Keys of MPT, each with the only value that is served.
const MPT_FIXED: [(&str, &str); 3] = [("expansion_ratio", "4"), ("logit_scale", "null"), ("no_bias", "true")];
/// Keys of MPT's `attn_config`, each with the only value that is served.
const MPT_ATTENTION_FIXED: [(&str, &str); 4] =
    [("alibi", "true"), ("attn_type", "\"multihead_attention\""), ("prefix_lm", "false"), ("qk_ln", "false")];

/// Builds BLOOM; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[])?;
    config.require_fixed(&BLOOM_FIXED)?;
    let norm = NormForm::layer(config.epsilon_or("layer_norm_epsilon", 1e-5)?);
    let mut decoder = decoder(config, WeightScope::root(dtype, num_ranks), (norm, BLOOM, 8.0))?;
    decoder.embedding_norm = Some("word_embeddings_layernorm");
    decoder.projections = Projections::FusedByHead { qkv: "query_key_value", output: "dense" };
    decoder.set_biases(true);
    decoder.mlp.activation = Activation::GeluTanh;
    decoder.mlp_form = MlpForm::Plain { up: "dense_h_to_4h", down: "dense_4h_to_h" };
    decoder.build()
}

/// Builds MPT; see [`super::build`].
pub(super) fn build_mpt(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    const ATTENTION: &str = "attn_config";
    // As in transformers, only `logit_scale` of these keys changes anything.
    neutral::require(config, &["embedding_fraction", "learned_pos_emb", "logit_scale", "norm_type"])?;
    config.require_fixed(&MPT_FIXED)?;
    let attention = config.nested(ATTENTION, config.object(ATTENTION)?.cloned().unwrap_or_default());
    attention.require_fixed(&MPT_ATTENTION_FIXED)?;
    let kind = NormKind::Layer { has_bias: false };
    let norm = NormForm { kind, ..NormForm::layer(config.epsilon_or("layer_norm_epsilon", 1e-5)?) };
    let last_exponent = attention.number_or("alibi_bias_max", 8.0)? as f32;
    let mut decoder = decoder(config, WeightScope::root(dtype, num_ranks), (norm, MPT, last_exponent))?;
    decoder.block = Block::pre_norm("norm_1", "norm_2");
    decoder.projections = Projections::Fused { qkv: "Wqkv", output: "out_proj" };
    // A limit of 0 is no limit.
    decoder.attention.clip = attention.number("clip_qkv")?.filter(|limit| *limit > 0.0).map(|limit| limit as f32);
    if let Some(scale) = attention.number("softmax_scale")? {
        decoder.attention.scale = scale as f32;
    }
    decoder.mlp.activation = Activation::Gelu;
    decoder.mlp_form = MlpForm::Plain { up: "up_proj", down: "down_proj" };
    decoder.build()
}

fn decoder(
    config: &Config,
    root: WeightScope,
    (norm, names, last_exponent): (NormForm, Names, f32),
) -> Result<Decoder, ModelError> {
    let mut decoder = Decoder::new(config, root, norm, 4 * config.size("hidden_size")?)?;
    decoder.names = names;
    let num_heads = decoder.attention.num_attention_heads;
    decoder.attention.num_key_value_heads = num_heads;
    decoder.attention.slopes = Some(Slopes { num_heads, last_exponent });
    decoder.layers.iter_mut().for_each(|layer| layer.rotary = None);
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    Ok(decoder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mpt(more: &str) -> Result<String, String> {
        let json = format!(r#"{{"vocab_size": 8, "d_model": 16, "n_heads": 2, "n_layers": 1{more}}}"#);
        let model = build_mpt(&Config::parse(json.as_bytes()).unwrap(), FloatType::F32, 1);
        model.map(|model| model.decoder.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_of_attention_are_read() {
        assert!(mpt("").unwrap().contains("slopes=8"));
        let graph = mpt(r#", "attn_config": {"alibi_bias_max": 16, "softmax_scale": 0.5}"#).unwrap();
        assert!(graph.contains("scale=0.5 slopes=16"), "{graph}");
        let clipped = |limit: &str| mpt(&format!(r#", "attn_config": {{"clip_qkv": {limit}}}"#)).unwrap();
        assert!(clipped("6").contains("select") && !clipped("0").contains("select"));
    }

    #[test]
    fn other_values_are_refused_by_name() {
        let cases = [
            (r#", "no_bias": false"#, "config.json: no_bias is false; only true is supported"),
            (r#", "logit_scale": 2"#, "config.json: logit_scale is 2; only null is supported"),
            (r#", "attn_config": {"alibi": false}"#, "config.json: attn_config.alibi is false; only true is supported"),
            (r#", "attn_config": {"qk_ln": true}"#, "config.json: attn_config.qk_ln is true; only false is supported"),
        ];
        for (more, expected) in cases {
            assert_eq!(mpt(more).unwrap_err(), expected);
        }
    }
}
