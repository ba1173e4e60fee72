//! Trinity, of the architecture AFMoE.
//!
//! Described in huggingface.co/arcee-ai/Trinity-Mini, 2025. Follows `transformers/models/afmoe/modeling_afmoe.py`.
//! Differences from Llama: each head of the queries and keys is normalised; by default three of every four layers have
//! a window, and only these rotate queries and keys; the output of attention has a gate; there are also norms after
//! attention and after the feed-forward network. All layers but the first ones (`num_dense_layers`) have experts as in
//! DeepSeek V3, without groups. Embeddings may be multiplied by the square root of their size (`mup_enabled`).

use numbers::FloatType;

use super::decoder::{Block, Decoder};
use super::sigmoid_experts::{self, Names};
use super::{Config, Model, ModelError, neutral};
use crate::layers::QueryKeyNorm;

/// Keys that may say what transformers always computes.
const FIXED: [(&str, &str); 4] =
    [("num_expert_groups", "1"), ("num_limited_groups", "1"), ("route_norm", "true"), ("score_func", "\"sigmoid\"")];
const NAMES: Names = Names {
    num_experts: "num_experts",
    num_shared: "num_shared_experts",
    router: "router.gate",
    bias: "expert_bias",
    shared: "mlp.shared_experts",
};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood = [
        "attention_bias",
        "global_attn_every_n_layers",
        "layer_types",
        "mup_enabled",
        "num_dense_layers",
        "num_experts",
        "num_shared_experts",
        "route_scale",
        "sliding_window",
    ];
    neutral::require(config, &understood)?;
    config.require_fixed(&FIXED)?;
    let config = &with_defaults(config)?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.block = Block::Sequential {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_attention_layernorm"),
        before_mlp: Some("pre_mlp_layernorm"),
        after_mlp: Some("post_mlp_layernorm"),
    };
    if config.flag_or("mup_enabled", false)? {
        decoder.embedding_multiplier = (decoder.attention.hidden_size as f32).sqrt();
    }
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    decoder.attention.has_gate = true;
    let period = config.size_or("global_attn_every_n_layers", 4)?;
    let sliding = decoder.set_windows(config, |layer| !(layer + 1).is_multiple_of(period))?;
    for (layer, _) in decoder.layers.iter_mut().zip(sliding).filter(|(_, is_sliding)| !is_sliding) {
        layer.rotary = None;
    }
    sigmoid_experts::set(&mut decoder, config, &NAMES)?;
    decoder.build()
}

/// Returns `config` with transformers' values for missing keys, and with DeepSeek's names of some keys.
fn with_defaults(config: &Config) -> Result<Config, ModelError> {
    let (num_dense, factor) = (config.count_or("num_dense_layers", 1)?, config.number_or("route_scale", 1.0)?);
    // Transformers does not read DeepSeek's names.
    let config = config.without(&["first_k_dense_replace", "norm_topk_prob", "routed_scaling_factor"]);
    let config = config.or_default("first_k_dense_replace", num_dense).or_default("routed_scaling_factor", factor);
    let config = config.or_default("norm_topk_prob", true).or_default("num_shared_experts", 2);
    let config = config.or_default("head_dim", 128).or_default("sliding_window", 1024);
    Ok(config.or_default("rms_norm_eps", 1e-5))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(more: &str) -> Result<String, String> {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 8,
            "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 3,
            "route_scale": 2.5{more}}}"#
        );
        let config = Config::parse(json.as_bytes()).unwrap();
        build(&config, FloatType::F32, 1).map(|model| model.decoder.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn missing_keys_have_the_defaults_of_transformers() {
        let all = r#", "num_dense_layers": 1, "num_shared_experts": 2, "head_dim": 128, "sliding_window": 1024,
            "rms_norm_eps": 1e-5, "global_attn_every_n_layers": 4, "mup_enabled": false"#;
        assert_eq!(graph(""), graph(all));
        assert_ne!(graph(""), graph(r#", "num_dense_layers": 2"#));
    }

    #[test]
    fn the_names_of_deepseek_change_nothing() {
        assert_eq!(graph(""), graph(r#", "routed_scaling_factor": 1, "norm_topk_prob": false"#));
        let expected = "config.json: route_norm is false; only true is supported";
        assert_eq!(graph(r#", "route_norm": false"#), Err(expected.to_owned()));
    }
}
