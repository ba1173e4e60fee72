//! GPT-Neo.
//!
//! Described in github.com/EleutherAI/gpt-neo, 2021. Follows `transformers/models/gpt_neo/modeling_gpt_neo.py`.
//! Differences from Llama: positions are learned vectors instead of rotations; norms are by mean and variance, with
//! bias; attention scores are not scaled; layers that `attention_layers` marks as local have a window; the feed-forward
//! network has no gate; it and the output of attention have biases; embeddings are tied by default.

use numbers::FloatType;

use super::decoder::{Block, Decoder, LearnedPositions, MlpForm, Names};
use super::{Config, Model, ModelError, neutral};
use crate::graph::Window;
use crate::layers::{NormForm, WeightScope};

const NAMES: Names = Names {
    base: "transformer",
    embedding: "wte",
    positions: "wpe",
    layers: "h",
    attention: "attn.attention",
    output: "out_proj",
    last_norm: "ln_f",
    ..Names::LLAMA
};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    // `attention_layers` lists what `attention_types` repeats.
    neutral::require(config, &["attention_types"])?;
    let config = &config.or_default("activation_function", "gelu_new");
    let norm = NormForm::layer(config.epsilon_or("layer_norm_epsilon", 1e-5)?);
    let intermediate_size = config.size_or("intermediate_size", 4 * config.size("hidden_size")?)?;
    let mut decoder = Decoder::new(config, WeightScope::root(dtype, num_ranks), norm, intermediate_size)?;
    decoder.names = NAMES;
    let num_positions = config.size("max_position_embeddings")?;
    decoder.learned_positions = Some(LearnedPositions { num_positions, first_row: 0 });
    decoder.block = Block::pre_norm("ln_1", "ln_2");
    (decoder.attention.has_output_bias, decoder.mlp.has_bias) = (true, true);
    decoder.attention.scale = 1.0;
    decoder.mlp_form = MlpForm::Plain { up: "c_fc", down: "c_proj" };
    let is_local = local_layers(config, decoder.layers.len())?;
    let window = Window::Sliding(config.size_or("window_size", 256)?);
    for (layer, is_local) in decoder.layers.iter_mut().zip(is_local) {
        layer.rotary = None;
        layer.window = is_local.then_some(window);
    }
    decoder.is_tied = config.flag_or("tie_word_embeddings", true)?;
    decoder.build()
}

/// Returns true for each layer that has a window. Without any key, these are every second layer, beginning with the
/// second.
fn local_layers(config: &Config, num_layers: usize) -> Result<Vec<bool>, ModelError> {
    const LAYERS: &str = "attention_layers";
    let Some(kinds) = config.texts(LAYERS)? else {
        let is_default = !config.has("attention_types");
        return if is_default {
            Ok((0..num_layers).map(|layer| layer % 2 == 1).collect())
        } else {
            Err(config.missing(LAYERS))
        };
    };
    if kinds.len() != num_layers {
        let expected = format!("one for each of {num_layers} layers");
        return Err(config.invalid(LAYERS, format!("{} kinds", kinds.len()), &expected));
    }
    let is_local = |kind: &&str| match *kind {
        "local" => Ok(true),
        "global" => Ok(false),
        other => Err(config.invalid(LAYERS, other, "global or local")),
    };
    kinds.iter().map(is_local).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_layers_are_read() {
        let of = |json: &str| {
            let config = Config::parse(json.as_bytes()).unwrap();
            local_layers(&config, 3).map_err(|error| error.to_string())
        };
        assert_eq!(of("{}"), Ok(vec![false, true, false]));
        assert_eq!(of(r#"{"attention_layers": ["local", "global", "local"]}"#), Ok(vec![true, false, true]));
        let expected = "config.json: attention_layers is sparse, expected global or local";
        assert_eq!(of(r#"{"attention_layers": ["sparse", "local", "local"]}"#), Err(expected.to_owned()));
        let expected = "config.json: attention_layers is 1 kinds, expected one for each of 3 layers";
        assert_eq!(of(r#"{"attention_layers": ["local"]}"#), Err(expected.to_owned()));
        let expected = "config.json has no attention_layers";
        assert_eq!(of(r#"{"attention_types": [[["global"], 3]]}"#), Err(expected.to_owned()));
    }
}
