//! Hunyuan, dense.
//!
//! Described in github.com/Tencent-Hunyuan/Hunyuan-7B, 2025. Follows
//! `transformers/models/hunyuan_v1_dense/modeling_hunyuan_v1_dense.py`. Differences from Llama: each head of the
//! queries and keys is normalised after its rotation; a rotary scaling of type `dynamic` with the key `alpha` is a
//! larger base, the same for all lengths.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};
use crate::layers::QueryKeyNorm;

/// Keys of the published checkpoints, each with the only value that is served.
const FIXED: [(&str, &str); 4] =
    [("position_embedding_xdrope", "false"), ("use_cla", "false"), ("use_mla", "false"), ("use_qk_norm", "true")];

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    // Without `use_mla`, the keys of latent attention change nothing.
    neutral::require(config, &["attention_bias", "kv_lora_rank", "num_experts", "q_lora_rank", "use_qk_norm"])?;
    config.require_fixed(&[("num_experts", "1")])?;
    decoder(config, dtype, num_ranks)?.build()
}

/// Returns the decoder with the properties that all Hunyuan models share.
///
/// # Errors
/// When a key is missing or malformed. The message names the key.
pub(super) fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    config.require_fixed(&FIXED)?;
    let config = &with_fixed_base(&config.or_default("rms_norm_eps", 1e-5))?;
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    (decoder.names.query_norm, decoder.names.key_norm) = ("query_layernorm", "key_layernorm");
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    decoder.attention.has_norm_last = true;
    Ok(decoder)
}

/// Returns `config` with the rotary base that `alpha` gives instead of a scaling of type `dynamic`. The base is
/// multiplied by alpha to the power of d / (d - 2), where d is the size of a head.
fn with_fixed_base(config: &Config) -> Result<Config, ModelError> {
    let Some(own) = config.rotary()? else { return Ok(config.clone()) };
    let kind = if own.has("rope_type") { own.text("rope_type")? } else { own.text("type")? };
    let Some(alpha) = own.number("alpha")?.filter(|alpha| kind == Some("dynamic") && *alpha != 0.0) else {
        return Ok(config.clone());
    };
    own.require_fixed(&[("factor", "1")])?;
    if alpha < 0.0 {
        return Err(own.invalid("alpha", alpha, "a positive number"));
    }
    let theta = match own.number("rope_theta")? {
        Some(theta) => theta,
        None => config.number_or("rope_theta", 10_000.0)?,
    };
    let head_dim =
        config.size_or("head_dim", config.size("hidden_size")? / config.size("num_attention_heads")?)? as f64;
    let theta = theta * alpha.powf(head_dim / (head_dim - 2.0));
    Ok(config.with_rotary(serde_json::json!({"rope_type": "default", "rope_theta": theta})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_with(more: &str) -> Result<f64, String> {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1,
            "intermediate_size": 8{more}}}"#
        );
        let config = Config::parse(json.as_bytes()).unwrap();
        let decoder = decoder(&config, FloatType::F32, 1).map_err(|error| error.to_string())?;
        // The second of four frequencies is the base to the power of -1/4.
        Ok(f64::from(decoder.layers[0].rotary.as_ref().unwrap().frequencies[1]).powi(-4))
    }

    #[test]
    fn alpha_is_a_larger_base() {
        let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-5, "{found}");
        near(build_with("").unwrap(), 10_000.0);
        let published = r#"{"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
            "mscale_all_dim": 0.0, "type": "dynamic"}"#;
        near(build_with(&format!(r#", "rope_scaling": {published}"#)).unwrap(), 1e4 * 1e3_f64.powf(8.0 / 6.0));
        let parameters = r#""rope_parameters": {"rope_type": "dynamic", "alpha": 8.0, "rope_theta": 500}"#;
        near(build_with(&format!(", {parameters}")).unwrap(), 500.0 * 16.0);
    }

    #[test]
    fn other_values_are_refused_by_name() {
        let scaling =
            |keys: &str| build_with(&format!(r#", "rope_scaling": {{"type": "dynamic", {keys}}}"#)).unwrap_err();
        insta::assert_snapshot!(
            scaling(r#""alpha": 1000, "factor": 2"#),
            @"config.json: rope_scaling.factor is 2; only 1 is supported"
        );
        insta::assert_snapshot!(
            scaling(r#""alpha": -1"#),
            @"config.json: rope_scaling.alpha is -1, expected a positive number"
        );
        insta::assert_snapshot!(
            build_with(r#", "use_cla": true"#).unwrap_err(),
            @"config.json: use_cla is true; only false is supported"
        );
    }

    #[test]
    fn a_single_expert_is_none() {
        let built = |more: &str| {
            let json = format!(
                r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1,
                "intermediate_size": 8{more}}}"#
            );
            let model = build(&Config::parse(json.as_bytes()).unwrap(), FloatType::F32, 1);
            model.map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(built(r#", "num_experts": 1, "use_mla": false, "kv_lora_rank": 512"#), Ok(()));
        let expected = "config.json: num_experts is 2; only 1 is supported";
        assert_eq!(built(r#", "num_experts": 2"#), Err(expected.to_owned()));
    }
}
