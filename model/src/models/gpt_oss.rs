//! gpt-oss.
//!
//! Paper: OpenAI, 2025 (arXiv 2508.10925). Follows `transformers/models/gpt_oss/modeling_gpt_oss.py`. Differences from
//! Llama: each head has a sink, a learned score in the softmax of attention; every second layer has a window, beginning
//! with the first; attention has biases; the feed-forward network is a mixture of experts with biases, whose gates are
//! clamped; all experts' matrices are one tensor, usually in MXFP4.

use numbers::FloatType;
use serde_json::json;

use super::decoder::{Decoder, ExpertsForm};
use super::{Config, Model, ModelError, neutral};
use crate::graph::{Activation, Clamp, Gating};
use crate::layers::{ExpertNames, RouterForm};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood =
        ["attention_bias", "layer_types", "num_local_experts", "sliding_window", "swiglu_alpha", "swiglu_limit"];
    neutral::require(config, &understood)?;
    config.require_fixed(&[("hidden_act", "\"silu\""), ("swiglu_alpha", "1.702")])?;
    let config = &with_defaults(config);
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.has_sinks = true;
    decoder.set_windows(config, |layer| layer % 2 == 0)?;
    let limit = config.number_or("swiglu_limit", 7.0)?;
    if limit <= 0.0 || limit > f64::from(f32::MAX) {
        return Err(config.invalid("swiglu_limit", limit, "a positive number"));
    }
    let clamp = Clamp { limit: limit as f32, offset: 1.0 };
    decoder.experts = Some(ExpertsForm {
        scope: "mlp",
        names: ExpertNames::Joined,
        // `swiglu_alpha` is the factor in this activation.
        gating: Gating { activation: Activation::QuickGelu, clamp: Some(clamp) },
        intermediate_size: decoder.mlp.intermediate_size,
        num_experts: config.size("num_local_experts")?,
        // A softmax over the chosen experts alone.
        router: RouterForm::softmax("router", config.size("num_experts_per_tok")?, true),
        shared: None,
    });
    decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
    decoder.build()
}

/// Returns `config` with the values that transformers assumes for missing keys, where other families assume others.
fn with_defaults(config: &Config) -> Config {
    let scaling = json!({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096});
    let config =
        if config.has("rope_parameters") { config.clone() } else { config.or_default("rope_scaling", scaling) };
    let config = config.or_default("attention_bias", true).or_default("head_dim", 64);
    config.or_default("rope_theta", 150_000.0).or_default("sliding_window", 128)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: &str = r#""vocab_size": 16, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2"#;

    fn decoder(more: &str) -> Result<String, String> {
        let config = Config::parse(format!("{{{SIZES}{more}}}").as_bytes()).unwrap();
        let model = build(&config, FloatType::Bf16, 1).map_err(|error| error.to_string())?;
        Ok(model.decoder.to_string())
    }

    fn count(graph: &str, part: &str) -> usize {
        graph.lines().filter(|line| line.contains(part)).count()
    }

    #[test]
    fn missing_keys_have_the_defaults_of_transformers() {
        let graph = decoder("").unwrap();
        assert_eq!(count(&graph, "scale=0.125 window=128 "), 1, "{graph}");
        assert_eq!(count(&graph, "scale=0.125 :"), 1, "{graph}");
        assert_eq!(count(&graph, "limit=7 offset=1"), 2, "{graph}");
        assert_eq!(count(&graph, "q_proj.bias"), 2, "{graph}");
        // The amplitude of yarn with a factor of 32.
        assert_eq!(count(&graph, &format!("amplitude={}", 0.1 * 32.0_f32.ln() + 1.0)), 4, "{graph}");
        assert_eq!(graph, decoder(r#", "swiglu_alpha": 1.702, "swiglu_limit": 7, "sliding_window": 128"#).unwrap());
    }

    #[test]
    fn other_values_are_refused_by_name() {
        let cases = [
            (r#", "swiglu_alpha": 1.5"#, "config.json: swiglu_alpha is 1.5; only 1.702 is supported"),
            (r#", "swiglu_limit": -7"#, "config.json: swiglu_limit is -7, expected a positive number"),
            (r#", "hidden_act": "gelu""#, "config.json: hidden_act is \"gelu\"; only \"silu\" is supported"),
            (
                r#", "layer_types": ["sliding_attention", "linear_attention"]"#,
                "config.json: layer_types is linear_attention, expected sliding_attention or full_attention",
            ),
            (r#", "num_experts": 4"#, "config.json: num_experts is 4; only null is supported"),
        ];
        for (more, expected) in cases {
            assert_eq!(decoder(more).unwrap_err(), expected);
        }
    }
}
