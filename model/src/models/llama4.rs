//! Llama 4, text: Scout, Maverick and Llama Guard 4.
//!
//! Described in ai.meta.com/blog/llama-4-multimodal-intelligence. Follows
//! `transformers/models/llama4/modeling_llama4.py`. Differences from Llama:
//!
//! * By default, every fourth layer has no rotary positions. There, queries are multiplied by a factor that grows with
//!   their position (Nakanishi, 2025, arXiv 2501.19399).
//! * The other layers attend only within chunks of `attention_chunk_size` positions. They rotate adjacent values, and
//!   then normalise each head without a weight.
//! * Most layers have experts and a shared expert. The sigmoid of an expert's score multiplies its input.
//! * The other layers have a wider feed-forward network.

use numbers::FloatType;

use super::decoder::{Decoder, ExpertsForm, Names, SharedForm};
use super::{Config, Model, ModelError, neutral, smollm3};
use crate::graph::{PositionScale, RouterSpec, Scoring, Weighted, Window};
use crate::layers::{AttentionForm, ExpertNames, NormForm, QueryKeyNorm, RouterForm, WeightScope};

/// The key that says if queries grow with their position.
const TUNING: &str = "attn_temperature_tuning";
/// Methods of quantization that store the matrices of each expert apart.
const METHODS_BY_EXPERT: [&str; 3] = ["awq", "compressed-tensors", "gptq"];

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let understood = [
        TUNING,
        "attention_bias",
        "attention_chunk_size",
        "interleave_moe_layer_step",
        "intermediate_size_mlp",
        "layer_types",
        "moe_layers",
        "no_rope_layer_interval",
        "no_rope_layers",
        "num_local_experts",
        "use_qk_norm",
    ];
    neutral::require(config, &understood)?;
    let config = &config.or_default("head_dim", 128).or_default("num_key_value_heads", 8);
    let config = &config.or_default("rope_theta", 500_000.0);
    let norm = NormForm::rms(config.epsilon_or("rms_norm_eps", 1e-5)?);
    let intermediate_size = config.size_or("intermediate_size_mlp", 16_384)?;
    let mut decoder = Decoder::new(config, WeightScope::root(dtype, num_ranks), norm, intermediate_size)?;
    decoder.names = Names { mlp: "feed_forward", ..Names::LLAMA };
    decoder.rotate_neighbours(config)?;
    set_attention(&mut decoder, config)?;
    set_experts(&mut decoder, config)?;
    decoder.build()
}

/// Sets the rotary positions, the window and the form of attention of each layer.
fn set_attention(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    let has_list = config.has("no_rope_layers") && !config.numbers("no_rope_layers")?.is_empty();
    let listed = if has_list { config.clone() } else { config.without(&["no_rope_layers"]) };
    let has_rotary = smollm3::layers_with_rotary(&listed, decoder.layers.len())?;
    let is_chunked = decoder.layers_of_type(config, "chunked_attention", |layer| has_rotary[layer])?;
    let window = Window::Chunked(config.size_or("attention_chunk_size", 8192)?);
    let has_norm = config.flag_or("use_qk_norm", true)?;
    let norm =
        if has_norm { QueryKeyNorm::Head(NormForm { has_weight: false, ..decoder.norm }) } else { QueryKeyNorm::None };
    let rotated = AttentionForm { norm, has_norm_last: true, ..decoder.attention };
    let unrotated = AttentionForm { query_growth: query_growth(config)?, ..decoder.attention };
    for (index, layer) in decoder.layers.iter_mut().enumerate() {
        layer.window = is_chunked[index].then_some(window);
        layer.rotary = layer.rotary.take().filter(|_| has_rotary[index]);
        layer.attention = Some(if has_rotary[index] { rotated } else { unrotated });
    }
    Ok(())
}

/// Returns the growth of queries with their position; `None` if they do not grow.
fn query_growth(config: &Config) -> Result<Option<PositionScale>, ModelError> {
    // Early files have a number here.
    let is_number = config.number(TUNING).is_ok_and(|number| number.is_some());
    let has_growth = if is_number { config.required_number(TUNING)? != 0.0 } else { config.flag_or(TUNING, true)? };
    let period = config.number_or("floor_scale", 8192.0)?;
    if has_growth && period < 1.0 {
        return Err(config.invalid("floor_scale", period, "a positive integer"));
    }
    let beta = config.number_or("attn_scale", 0.1)? as f32;
    Ok(has_growth.then_some(PositionScale { beta, period: period as f32, offset: 1.0 }))
}

fn set_experts(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    let num_layers = decoder.layers.len();
    let sparse: Vec<bool> = if config.has("moe_layers") {
        let listed = config.numbers("moe_layers")?;
        (0..num_layers).map(|layer| listed.contains(&(layer as f64))).collect()
    } else {
        let step = config.size_or("interleave_moe_layer_step", 1)?;
        (1..=num_layers).map(|number| number % step == 0).collect()
    };
    decoder.layers.iter_mut().zip(&sparse).for_each(|(layer, is_sparse)| layer.has_experts = *is_sparse);
    if !sparse.contains(&true) {
        return Ok(());
    }
    let quantization = config.object("quantization_config")?;
    let method = quantization.and_then(|keys| keys.get("quant_method")?.as_str());
    let is_by_expert = method.is_some_and(|method| METHODS_BY_EXPERT.contains(&method));
    let num_chosen = config.size_or("num_experts_per_tok", 1)?;
    let spec = RouterSpec { num_chosen, scoring: Scoring::Sigmoid, groups: None, least_sum: None };
    let intermediate_size = config.size_or("intermediate_size", 8192)?;
    decoder.experts = Some(ExpertsForm {
        scope: "feed_forward",
        names: if is_by_expert {
            ExpertNames::Each(["gate_proj", "up_proj", "down_proj"])
        } else {
            ExpertNames::Halves
        },
        gating: decoder.mlp.activation.into(),
        intermediate_size,
        num_experts: config.size_or("num_local_experts", 16)?,
        router: RouterForm { weighted: Weighted::Input, ..RouterForm::new("router", spec) },
        shared: Some(SharedForm { scope: "feed_forward.shared_expert", intermediate_size, gate: None }),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder(more: &str) -> Result<String, String> {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 4, "head_dim": 8,
            "num_key_value_heads": 1, "intermediate_size": 6, "num_local_experts": 3{more}}}"#
        );
        let config = Config::parse(json.as_bytes()).unwrap();
        let model = build(&config, FloatType::Bf16, 1).map_err(|error| error.to_string())?;
        Ok(model.decoder.to_string())
    }

    fn count(graph: &str, part: &str) -> usize {
        graph.lines().filter(|line| line.contains(part)).count()
    }

    #[test]
    fn missing_keys_have_the_defaults_of_transformers() {
        let graph = decoder("").unwrap();
        assert_eq!(count(&graph, " chunked=8192"), 3, "{graph}");
        assert_eq!(count(&graph, "neighbours"), 6, "{graph}");
        assert_eq!(count(&graph, "scale_by_position %"), 1, "{graph}");
        assert_eq!(count(&graph, "beta=0.1 period=8192 offset=1"), 1, "{graph}");
        assert_eq!(count(&graph, "chosen=1 normalised=false scoring=Sigmoid"), 4, "{graph}");
        assert_eq!(count(&graph, "weighted=Input"), 4, "{graph}");
        let all = r#", "intermediate_size_mlp": 16384, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
            "use_qk_norm": true, "no_rope_layers": [], "no_rope_layer_interval": 4, "attention_chunk_size": 8192,
            "attn_temperature_tuning": 4, "floor_scale": 8192, "attn_scale": 0.1, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0, "moe_layers": [0, 1, 2, 3]"#;
        assert_eq!(graph, decoder(all).unwrap());
    }

    #[test]
    fn layers_have_their_own_forms() {
        let graph = decoder(
            r#", "no_rope_layers": [1, 0, 0, 1], "attn_temperature_tuning": false, "use_qk_norm": false,
            "interleave_moe_layer_step": 2, "intermediate_size_mlp": 12, "attention_chunk_size": 5,
            "layer_types": ["chunked_attention", "chunked_attention", "full_attention", "full_attention"]"#,
        )
        .unwrap();
        assert_eq!([count(&graph, " chunked=5"), count(&graph, "neighbours"), count(&graph, "route ")], [2, 4, 2]);
        assert_eq!([count(&graph, "scale_by_position"), count(&graph, "rms_norm")], [0, 9], "{graph}");
        assert_eq!(count(&graph, "feed_forward.gate_proj.weight Column : [12, 16]"), 2, "{graph}");
        // Llama Guard 4 has no experts.
        let guard = decoder(r#", "moe_layers": [], "num_local_experts": 0, "interleave_moe_layer_step": 0"#);
        assert_eq!(guard.map(|graph| count(&graph, "route ")), Ok(0));
    }

    #[test]
    fn quantized_experts_are_stored_one_by_one() {
        let count = |method: &str| {
            let config = format!(r#", "quantization_config": {{"quant_method": "{method}"}}"#);
            count(&decoder(&config).unwrap(), "experts.*.gate_proj.weight Column : [3, 6, 16]")
        };
        assert_eq!(["compressed-tensors", "gptq", "fp8"].map(count), [4, 4, 0]);
    }

    #[test]
    fn other_values_are_refused_by_name() {
        let cases = [
            (r#", "floor_scale": 0"#, "floor_scale is 0, expected a positive integer"),
            (
                r#", "attention_chunk_size": 0"#,
                "attention_chunk_size is 0, expected a positive integer up to 2147483647",
            ),
            (r#", "no_rope_layers": [1]"#, "no_rope_layers is 1 numbers, expected one for each of 4 layers"),
            (r#", "sliding_window": 4"#, "sliding_window is 4; only null is supported"),
            (
                r#", "layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention"]"#,
                "layer_types is sliding_attention, expected chunked_attention or full_attention",
            ),
        ];
        for (more, expected) in cases {
            assert_eq!(decoder(more).unwrap_err(), format!("config.json: {expected}"));
        }
    }
}
