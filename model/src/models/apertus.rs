//! Apertus.
//!
//! Paper: Apertus team, 2025 (arXiv 2509.14233). Follows `transformers/models/apertus/modeling_apertus.py`.
//! Differences from Llama: the feed-forward network has no gate; its activation is xIELU (arXiv 2411.13010), with
//! parameters that each layer has learned; each head of the queries and keys is normalised; the default rotary scaling
//! is that of Llama 3.

use numbers::FloatType;
use serde_json::json;

use super::decoder::{Block, Decoder, MlpForm};
use super::{Config, Model, ModelError, neutral};
use crate::layers::QueryKeyNorm;

/// Keys of the published checkpoints, each with the only value that is served.
const FIXED: [(&str, &str); 2] = [("post_norm", "false"), ("qk_norm", "true")];

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias"])?;
    config.require_fixed(&FIXED)?;
    let config = &config.or_default("rope_theta", 12_000_000.0).or_default("rms_norm_eps", 1e-5);
    let config = if config.rotary()?.is_some() {
        config
    } else {
        &config.with_rotary(json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}))
    };
    let has_xielu = config.text("hidden_act")?.is_none_or(|name| name == "xielu");
    let config = if has_xielu { &config.without(&["hidden_act"]) } else { config };
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.block = Block::pre_norm("attention_layernorm", "feedforward_layernorm");
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    let (up, down) = ("up_proj", "down_proj");
    decoder.mlp_form = match has_xielu {
        true => MlpForm::Xielu { up, down, activation: "act_fn" },
        false => MlpForm::Plain { up, down },
    };
    decoder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(more: &str) -> Result<Vec<String>, String> {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1,
            "intermediate_size": 8{more}}}"#
        );
        let model = build(&Config::parse(json.as_bytes()).unwrap(), FloatType::F32, 1);
        let names = |model: Model| model.decoder.weights().map(|spec| spec.name.clone()).collect();
        model.map(names).map_err(|error| error.to_string())
    }

    #[test]
    fn the_activation_is_xielu_by_default() {
        let has_alpha = |more: &str| weights(more).unwrap().contains(&"model.layers.0.mlp.act_fn.alpha_p".to_owned());
        assert!(has_alpha("") && has_alpha(r#", "hidden_act": "xielu""#));
        assert!(!has_alpha(r#", "hidden_act": "relu2""#));
        insta::assert_snapshot!(
            weights(r#", "hidden_act": "abc""#).unwrap_err(),
            @r#"config.json: hidden_act is "abc", expected silu, gelu, gelu_new, gelu_pytorch_tanh, relu or relu2"#
        );
    }

    #[test]
    fn other_values_are_refused_by_name() {
        let message = weights(r#", "qk_norm": false"#).unwrap_err();
        insta::assert_snapshot!(message, @"config.json: qk_norm is false; only true is supported");
    }
}
