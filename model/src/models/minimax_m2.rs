//! MiniMax M2 and its successors 2.1 to 2.7.
//!
//! Described in huggingface.co/MiniMaxAI/MiniMax-M2, 2025. Follows
//! `transformers/models/minimax_m2/modeling_minimax_m2.py`. Differences from Llama: queries and keys are normalised
//! over all heads together; a part of each head is rotated (`rotary_dim`); all layers have experts that are chosen by
//! sigmoids with biases, and whose weights add up to 1.

use numbers::FloatType;

use super::decoder::{Decoder, ExpertsForm};
use super::{Config, Model, ModelError, neutral};
use crate::graph::{RouterSpec, Scoring};
use crate::layers::{ChoiceBias, ExpertNames, QueryKeyNorm, RouterForm};

/// Keys of the published checkpoints, each with the only value that is served.
const FIXED: [(&str, &str); 5] = [
    ("qk_norm_type", "\"per_layer\""),
    ("scoring_func", "\"sigmoid\""),
    ("shared_intermediate_size", "0"),
    ("use_qk_norm", "true"),
    ("use_routing_bias", "true"),
];

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood = ["num_local_experts", "partial_rotary_factor", "rotary_dim", "scoring_func", "use_qk_norm"];
    neutral::require(config, &understood)?;
    config.require_fixed(&FIXED)?;
    if config.has("attn_type_list") && config.numbers("attn_type_list")?.iter().any(|kind| *kind != 1.0) {
        return Err(config.unsupported("attn_type_list", "not 1 for every layer", "1, full attention,"));
    }
    let config = &with_defaults(config)?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::AllHeads(decoder.norm.eps);
    let spec = RouterSpec {
        num_chosen: config.size("num_experts_per_tok")?,
        scoring: Scoring::Sigmoid,
        groups: None,
        least_sum: Some(f32::MIN_POSITIVE),
    };
    let bias = Some(ChoiceBias::Vector("e_score_correction_bias"));
    decoder.experts = Some(ExpertsForm {
        scope: "block_sparse_moe",
        names: ExpertNames::Each(["w1", "w3", "w2"]),
        gating: decoder.mlp.activation.into(),
        intermediate_size: decoder.mlp.intermediate_size,
        num_experts: config.size("num_local_experts")?,
        router: RouterForm { bias, ..RouterForm::new("gate", spec) },
        shared: None,
    });
    decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
    decoder.build()
}

/// Returns `config` with the values that transformers assumes for missing keys, where Llama has others.
fn with_defaults(config: &Config) -> Result<Config, ModelError> {
    let config = config.or_default("head_dim", 128).or_default("rope_theta", 5_000_000.0);
    if !config.has("rotary_dim") {
        return Ok(config);
    }
    let (rotary_dim, head_dim) = (config.size("rotary_dim")?, config.size("head_dim")?);
    if rotary_dim > head_dim {
        return Err(config.invalid("rotary_dim", rotary_dim, &format!("at most head_dim, {head_dim}")));
    }
    Ok(config.or_default("partial_rotary_factor", rotary_dim as f64 / head_dim as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(more: &str) -> String {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "head_dim": 8,
            "intermediate_size": 8, "num_local_experts": 4, "num_experts_per_tok": 2{more}}}"#
        );
        let config = Config::parse(json.as_bytes()).unwrap();
        build(&config, FloatType::F32, 1).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn published_keys_are_understood_and_others_refused_by_name() {
        let published = r#", "attn_type_list": [1], "qk_norm_type": "per_layer", "rotary_dim": 4, "use_qk_norm": true,
            "scoring_func": "sigmoid", "shared_intermediate_size": 0, "use_routing_bias": true"#;
        assert_eq!(message(published), "");
        for (more, expected) in [
            (r#", "rotary_dim": 10"#, "config.json: rotary_dim is 10, expected at most head_dim, 8"),
            (
                r#", "attn_type_list": [0]"#,
                "config.json: attn_type_list is not 1 for every layer; only 1, full attention, is supported",
            ),
            (
                r#", "scoring_func": "softmax""#,
                "config.json: scoring_func is \"softmax\"; only \"sigmoid\" is supported",
            ),
            (r#", "shared_intermediate_size": 16"#, "config.json: shared_intermediate_size is 16; only 0 is supported"),
        ] {
            assert_eq!(message(more), expected);
        }
    }
}
