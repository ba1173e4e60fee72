//! Gemma 1.
//!
//! Paper: Gemma team, 2024 (arXiv 2403.08295). Follows `transformers/models/gemma/modeling_gemma.py`. Differences from
//! Llama: norms multiply by 1 + weight; embeddings are multiplied by the square root of the hidden size, rounded to the
//! type of the weights; the gate's activation is the tanh approximation of GELU; `head_dim` is independent of the
//! hidden size; embeddings are tied by default.

use numbers::FloatType;

use super::activation::activation;
use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral};
use crate::graph::Activation;

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias"])?;
    decoder(config, dtype, num_ranks)?.build()
}

/// Returns the decoder with the properties that all Gemma models share.
///
/// # Errors
/// When a key is missing or malformed. The message names the key.
pub(super) fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    let config = &config.or_default("hidden_act", "gelu_pytorch_tanh");
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    decoder.norm.offset = 1.0;
    decoder.embedding_multiplier = dtype.round((decoder.attention.hidden_size as f32).sqrt());
    // Early configurations say `gelu` but mean the approximation.
    decoder.mlp.activation = match activation(config)? {
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    };
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    Ok(decoder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_activation_is_that_of_transformers_by_default() {
        let activation = |key: &str| {
            let json = format!(
                r#"{{"vocab_size": 8, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1,
                "intermediate_size": 8{key}}}"#
            );
            decoder(&Config::parse(json.as_bytes()).unwrap(), FloatType::F32, 1).unwrap().mlp.activation
        };
        assert_eq!(activation(""), Activation::GeluTanh);
        assert_eq!(activation(r#", "hidden_act": "gelu""#), Activation::GeluTanh);
        assert_eq!(activation(r#", "hidden_activation": "silu""#), Activation::Silu);
    }
}
