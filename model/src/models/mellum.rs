//! Mellum 2.
//!
//! Described in huggingface.co/JetBrains/Mellum2-12B-A2.5B-Base, 2026. Follows
//! `transformers/models/mellum/modeling_mellum.py`. Differences from Qwen 3 with experts: layers may have a window.
//! Layers with a window have another rotary embedding. `mlp_layer_types` says which layers have experts. The layers
//! after the last one, which predict further tokens, are not read.

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral, qwen_moe, sigmoid_experts};
use crate::layers::QueryKeyNorm;

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood = [
        "attention_bias",
        "layer_types",
        "mlp_layer_types",
        "num_experts",
        "num_local_experts",
        "sliding_window",
        // Transformers does not read this key: `layer_types` decides.
        "use_sliding_window",
    ];
    neutral::require(config, &understood)?;
    let config = &with_defaults(config);
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.attention.norm = QueryKeyNorm::Head(decoder.norm);
    let sliding = decoder.set_windows(config, |_| false)?;
    decoder.set_local_rotary(config, &sliding, 10_000.0)?;
    qwen_moe::set_experts(&mut decoder, config, (config.size("moe_intermediate_size")?, None))?;
    let sparse = sigmoid_experts::sparse_layers(config, decoder.layers.len())?;
    decoder.layers.iter_mut().zip(sparse).for_each(|(layer, is_sparse)| layer.has_experts = is_sparse);
    decoder.build()
}

/// Returns `config` with transformers' values for missing keys. Rotary parameters are only read in `rope_parameters`.
fn with_defaults(config: &Config) -> Config {
    let config = config.without(&["rope_scaling", "rope_theta"]).or_default("rope_theta", 500_000.0);
    let config = config.or_default("head_dim", 128).or_default("num_key_value_heads", 4);
    config.or_default("norm_topk_prob", true).or_default("sliding_window", 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(more: &str) -> String {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 8,
            "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
            "layer_types": ["full_attention", "sliding_attention"]{more}}}"#
        );
        let config = Config::parse(json.as_bytes()).unwrap();
        // The text of a graph leaves out the frequencies of rotary embeddings.
        format!("{:?}", build(&config, FloatType::F32, 1).unwrap().decoder.nodes())
    }

    #[test]
    fn missing_keys_have_the_defaults_of_transformers() {
        let rotary = |full: &str, sliding: &str| {
            format!(
                r#", "rope_parameters": {{"full_attention": {{"rope_type": "default", "rope_theta": {full}}},
                "sliding_attention": {{"rope_type": "default", "rope_theta": {sliding}}}}}"#
            )
        };
        let sizes = r#", "head_dim": 128, "num_key_value_heads": 4, "sliding_window": 1024, "norm_topk_prob": true"#;
        assert_eq!(graph(""), graph(&format!("{sizes}{}", rotary("500000", "10000"))));
        for other in [rotary("10000", "10000"), rotary("500000", "500000")] {
            assert!(graph("") != graph(&format!("{sizes}{other}")), "{other}");
        }
        assert_eq!(graph(""), graph(r#", "rope_theta": 7, "use_sliding_window": true"#));
    }
}
