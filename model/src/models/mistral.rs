//! Mistral, Ministral and Ministral 3.
//!
//! Paper: Jiang et al., 2023 (arXiv 2310.06825). Follows `transformers/models/mistral/modeling_mistral.py`,
//! `ministral/modeling_ministral.py` and `ministral3/modeling_ministral3.py`. Differences from Llama: queries attend
//! only to the last `sliding_window` keys, in the layers that `layer_types` marks as sliding (Ministral), or in all
//! layers if that key is missing (Mistral); there are no biases. Without `layer_types`, no layer has a window if
//! `sliding_window` is null. In Ministral 3, queries are multiplied by a factor that grows with their position
//! (`llama_4_scaling_beta`).

use numbers::FloatType;
use serde_json::json;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, deepseek, neutral};
use crate::graph::PositionScale;

/// The key of the growth of queries with their position.
const BETA: &str = "llama_4_scaling_beta";
/// The key of the number of positions after which queries grow.
const PERIOD: &str = "original_max_position_embeddings";

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["layer_types", "sliding_window"])?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    let has_window = config.has("sliding_window");
    decoder.set_windows(config, |_| has_window)?;
    decoder.build()
}

/// Builds Ministral 3; see [`super::build`].
pub(super) fn build_ministral3(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["sliding_window"])?;
    let config = config.or_default("rms_norm_eps", 1e-5);
    let config = match config.rotary()? {
        Some(_) => config,
        None => config.with_rotary(json!({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, PERIOD: 16_384,
            "mscale": 1.0, "mscale_all_dim": 1.0, BETA: 0.1})),
    };
    let (growth, config) = &query_growth(&config)?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.query_growth = Some(*growth);
    let has_window = config.has("sliding_window");
    decoder.set_windows(config, |_| has_window)?;
    decoder.build()
}

/// Returns the growth of queries with their position, and `config` without the keys that only describe it.
///
/// # Errors
/// When a key is missing or malformed.
pub(super) fn query_growth(config: &Config) -> Result<(PositionScale, Config), ModelError> {
    let rotary = config.rotary()?.ok_or_else(|| config.missing("rope_parameters"))?;
    let (beta, period) = (rotary.required_number(BETA)? as f32, rotary.required_number(PERIOD)?);
    if period < 1.0 {
        return Err(rotary.invalid(PERIOD, period, "a positive integer"));
    }
    // Transformers reads `max_position_embeddings` outside of the rotary parameters only.
    let config = config.without_rotary_keys(&[BETA, "max_position_embeddings"]);
    Ok((PositionScale { beta, period: period as f32, offset: 0.0 }, config))
}

/// Builds the text model of a composite; see [`super::build`].
pub(super) fn build_text(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    match config.text("model_type")? {
        Some("ministral3") => build_ministral3(config, dtype, num_ranks),
        Some("mistral4") => deepseek::build_mistral4(config, dtype, num_ranks),
        _ => build(config, dtype, num_ranks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ministral3(more: &str) -> Result<String, String> {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1,
            "intermediate_size": 8{more}}}"#
        );
        let model = build_ministral3(&Config::parse(json.as_bytes()).unwrap(), FloatType::F32, 1);
        model.map(|model| model.decoder.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn queries_grow_by_default_as_in_transformers() {
        let graph = ministral3("").unwrap();
        let growing: Vec<&str> = graph.lines().filter(|line| line.contains("scale_by_position")).collect();
        assert_eq!(growing.len(), 1, "{graph}");
        assert!(growing[0].contains("beta=0.1 period=16384"), "{growing:?}");
    }

    #[test]
    fn other_rotary_parameters_are_refused_by_name() {
        let rotary =
            |keys: &str| ministral3(&format!(r#", "rope_parameters": {{"rope_type": "default"{keys}}}"#)).unwrap_err();
        insta::assert_snapshot!(rotary(""), @"config.json has no rope_parameters.llama_4_scaling_beta");
        insta::assert_snapshot!(
            rotary(r#", "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 0"#),
            @"config.json: rope_parameters.original_max_position_embeddings is 0, expected a positive integer"
        );
        insta::assert_snapshot!(
            rotary(r#", "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 8, "alpha": 2"#),
            @"config.json: rope_parameters.alpha is 2; only null is supported"
        );
    }
}
