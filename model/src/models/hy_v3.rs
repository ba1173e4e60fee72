//! Hy3, Tencent's Hunyuan 3.
//!
//! Described in huggingface.co/tencent/Hy3-preview, 2026. Follows `transformers/models/hy_v3/modeling_hy_v3.py`.
//! Differences from Llama: each head of the queries and keys is normalised; all layers but the first have experts as in
//! DeepSeek V3, without groups. The layers after the last one, which predict further tokens, are not read.

use numbers::FloatType;

use super::decoder::Decoder;
use super::sigmoid_experts::{self, Names};
use super::{Config, Model, ModelError, neutral};
use crate::layers::QueryKeyNorm;

/// Keys that may say what transformers always computes.
const FIXED: [(&str, &str); 4] = [
    ("moe_router_enable_expert_bias", "true"),
    ("moe_router_use_sigmoid", "true"),
    ("qk_norm", "true"),
    ("route_norm", "true"),
];
const NAMES: Names = Names {
    num_experts: "num_experts",
    num_shared: "num_shared_experts",
    router: "router.gate",
    bias: "expert_bias",
    shared: "mlp.shared_mlp",
};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood = [
        "attention_bias",
        "first_k_dense_replace",
        "mlp_bias",
        "mlp_layer_types",
        "num_experts",
        "num_local_experts",
        "num_shared_experts",
    ];
    neutral::require(config, &understood)?;
    config.require_fixed(&FIXED)?;
    let config = &with_defaults(config)?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    sigmoid_experts::set(&mut decoder, config, &NAMES)?;
    decoder.build()
}

/// Returns `config` with the values that transformers assumes for missing keys, and with DeepSeek's name of the factor
/// of weights.
fn with_defaults(config: &Config) -> Result<Config, ModelError> {
    let factor = config.number_or("router_scaling_factor", 2.826)?;
    // Transformers does not read DeepSeek's name.
    let config = config.without(&["routed_scaling_factor"]);
    let config = config.or_default("first_k_dense_replace", 1).or_default("norm_topk_prob", true);
    let config = config.or_default("num_shared_experts", 1).or_default("rope_theta", 11_158_840.0);
    Ok(config.or_default("routed_scaling_factor", factor).or_default("rms_norm_eps", 1e-5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_has_one_name() {
        let graph = |more: &str| {
            let json = format!(
                r#"{{"vocab_size": 8, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 8,
                "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2{more}}}"#
            );
            let config = Config::parse(json.as_bytes()).unwrap();
            build(&config, FloatType::F32, 1).unwrap().decoder.to_string()
        };
        assert_eq!(graph(""), graph(r#", "routed_scaling_factor": 1"#));
        assert_ne!(graph(""), graph(r#", "router_scaling_factor": 1"#));
    }
}
