//! OLMo 1.
//!
//! Paper: Groeneveld et al., 2024 (arXiv 2402.00838). Follows `transformers/models/olmo/modeling_olmo.py`. Differences
//! from Llama: norms are by mean and variance, without weights; queries, keys and values may be clipped (`clip_qkv`).

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};
use crate::layers::{NormForm, NormKind, WeightScope};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "clip_qkv"])?;
    let kind = NormKind::Layer { has_bias: false };
    let norm = NormForm { kind, has_weight: false, ..NormForm::layer(1e-5) };
    let root = WeightScope::root(dtype, num_ranks);
    let mut decoder = Decoder::new(config, root, norm, config.size("intermediate_size")?)?;
    let clip = config.number("clip_qkv")?;
    if let Some(limit) = clip.filter(|limit| *limit < 0.0) {
        return Err(config.invalid("clip_qkv", limit, "a number that is not negative"));
    }
    decoder.attention.clip = clip.map(|limit| limit as f32);
    decoder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(more: &str) -> String {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2,
            "intermediate_size": 8{more}}}"#
        );
        let model = build(&Config::parse(json.as_bytes()).unwrap(), FloatType::F32, 1);
        model.unwrap_err().to_string()
    }

    #[test]
    fn other_values_are_refused_by_name() {
        insta::assert_snapshot!(
            message(r#", "clip_qkv": -1"#),
            @"config.json: clip_qkv is -1, expected a number that is not negative"
        );
        insta::assert_snapshot!(
            message(r#", "mlp_bias": true"#),
            @"config.json: mlp_bias is true; only false is supported"
        );
    }
}
