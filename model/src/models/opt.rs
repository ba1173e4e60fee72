//! OPT and BioGPT.
//!
//! Papers: Zhang et al., 2022 (arXiv 2205.01068); Luo et al., 2022 (arXiv 2210.10341). Follows
//! `transformers/models/opt/modeling_opt.py` and `biogpt/modeling_biogpt.py`. Differences from Llama: positions are
//! learned vectors instead of rotations, after two rows that are not used; norms are by mean and variance, with bias;
//! the feed-forward network has no gate, and its activation is ReLU in OPT and GELU in BioGPT; all layers have biases
//! (`enable_bias` in OPT); embeddings are tied by default. BioGPT multiplies embeddings by the square root of the
//! hidden size (`scale_embedding`). OPT 350M, whose norms come last, is refused.

use numbers::FloatType;

use super::decoder::{Block, Decoder, LearnedPositions, MlpForm, Names};
use super::{Config, Model, ModelError, neutral};
use crate::layers::{NormForm, WeightScope};

const NAMES: Names =
    Names { base: "model.decoder", output: "out_proj", mlp: "", last_norm: "final_layer_norm", ..Names::LLAMA };

/// Keys with the only value that is served.
const FIXED: [(&str, &str); 3] = [
    ("_remove_final_layer_norm", "false"),
    ("do_layer_norm_before", "true"),
    ("layer_norm_elementwise_affine", "true"),
];

/// Builds OPT; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[])?;
    config.require_fixed(&FIXED)?;
    let hidden_size = config.size("hidden_size")?;
    config.require_fixed(&[("word_embed_proj_dim", &hidden_size.to_string())])?;
    let mut decoder = decoder(&config.or_default("activation_function", "relu"), dtype, num_ranks)?;
    decoder.set_biases(config.flag_or("enable_bias", true)?);
    decoder.build()
}

/// Builds BioGPT; see [`super::build`].
pub(super) fn build_biogpt(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    // As in transformers, layer norms have the default of torch.
    neutral::require(config, &["layer_norm_eps"])?;
    let mut decoder = decoder(&config.or_default("hidden_act", "gelu"), dtype, num_ranks)?;
    decoder.names = Names { base: "biogpt", last_norm: "layer_norm", head: "output_projection", ..NAMES };
    if config.flag_or("scale_embedding", true)? {
        decoder.embedding_multiplier = (decoder.attention.hidden_size as f32).sqrt();
    }
    decoder.build()
}

fn decoder(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Decoder, ModelError> {
    let root = WeightScope::root(dtype, num_ranks);
    let mut decoder = Decoder::new(config, root, NormForm::layer(1e-5), config.size("intermediate_size")?)?;
    decoder.names = NAMES;
    let num_positions = config.size("max_position_embeddings")?;
    decoder.learned_positions = Some(LearnedPositions { num_positions, first_row: 2 });
    decoder.layers.iter_mut().for_each(|layer| layer.rotary = None);
    decoder.block = Block::pre_norm("self_attn_layer_norm", "final_layer_norm");
    decoder.set_biases(true);
    decoder.mlp_form = MlpForm::Plain { up: "fc1", down: "fc2" };
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    Ok(decoder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_forms_are_refused_by_name() {
        let message = |more: &str| {
            let json = format!(
                r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "ffn_dim": 8,
                "max_position_embeddings": 4{more}}}"#
            );
            let model = build(&Config::parse(json.as_bytes()).unwrap(), FloatType::F32, 1);
            model.map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(message(r#", "word_embed_proj_dim": 16"#), Ok(()));
        let expected = "config.json: do_layer_norm_before is false; only true is supported";
        assert_eq!(message(r#", "do_layer_norm_before": false"#), Err(expected.to_owned()));
        let expected = "config.json: word_embed_proj_dim is 8; only 16 is supported";
        assert_eq!(message(r#", "word_embed_proj_dim": 8"#), Err(expected.to_owned()));
    }
}
