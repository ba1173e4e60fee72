//! ERNIE 4.5 with experts.
//!
//! Described in Baidu's ERNIE 4.5 report, 2025. Follows `transformers/models/ernie4_5_moe/modeling_ernie4_5_moe.py`.
//! Differences from dense ERNIE 4.5: some layers (`moe_layer_start_index`, `moe_layer_end_index`, `moe_layer_interval`)
//! have experts that are chosen by a softmax with biases, which do not change the weights, and shared experts. The
//! matrix of the router is f32 in any case. `use_bias` also gives the output head a bias.

use numbers::FloatType;

use super::decoder::{Decoder, ExpertsForm, SharedForm};
use super::{Config, Model, ModelError, ernie, neutral};
use crate::graph::{RouterSpec, Scoring};
use crate::layers::{ChoiceBias, ExpertNames, RouterForm};

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["moe_num_experts", "use_bias"])?;
    let mut decoder = ernie::decoder(config, dtype, num_ranks)?;
    decoder.has_head_bias = config.flag_or("use_bias", false)?;
    set_experts(&mut decoder, config)?;
    decoder.build()
}

fn set_experts(decoder: &mut Decoder, config: &Config) -> Result<(), ModelError> {
    let least_sum = config.number_or("moe_norm_min", 1e-12)? as f32;
    if !(least_sum > 0.0 && least_sum.is_finite()) {
        return Err(config.invalid("moe_norm_min", least_sum, "a positive number"));
    }
    let spec = RouterSpec {
        num_chosen: config.size_or("moe_k", 6)?,
        scoring: Scoring::Softmax,
        groups: None,
        least_sum: Some(least_sum),
    };
    let bias = Some(ChoiceBias::Row("moe_statics.e_score_correction_bias"));
    let intermediate_size = config.size_or("moe_intermediate_size", 1536)?;
    let num_shared = config.count_or("moe_num_shared_experts", 2)?;
    let shared =
        SharedForm { scope: "mlp.shared_experts", intermediate_size: num_shared * intermediate_size, gate: None };
    decoder.experts = Some(ExpertsForm {
        scope: "mlp",
        names: ExpertNames::Each(["gate_proj", "up_proj", "down_proj"]),
        gating: decoder.mlp.activation.into(),
        intermediate_size,
        num_experts: config.size_or("moe_num_experts", 64)?,
        router: RouterForm { is_f32: true, bias, ..RouterForm::new("gate", spec) },
        shared: (num_shared > 0).then_some(shared),
    });
    let (first, interval) = (config.count_or("moe_layer_start_index", 1)?, config.size_or("moe_layer_interval", 1)?);
    let has_end = config.number_or("moe_layer_end_index", -1.0)? != -1.0;
    let last = if has_end { config.count_or("moe_layer_end_index", 0)? } else { usize::MAX };
    for (idx, layer) in decoder.layers.iter_mut().enumerate() {
        layer.has_experts = (first..=last).contains(&idx) && (idx + 1) % interval == 0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder(more: &str) -> Result<String, String> {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 4,
            "intermediate_size": 8, "moe_num_experts": 4, "moe_k": 2{more}}}"#
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
        assert_eq!(count(&graph, "route"), 3, "{graph}");
        assert_eq!(count(&graph, ".mlp.gate.weight Replicated : [4, 16] float32"), 3, "{graph}");
        assert_eq!(count(&graph, "e_score_correction_bias Replicated : [1, 4] float32"), 3, "{graph}");
        assert_eq!(count(&graph, "shared_experts.gate_proj.weight Column : [3072, 16] bfloat16"), 3, "{graph}");
        let all = r#", "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1,
            "moe_intermediate_size": 1536, "moe_num_shared_experts": 2, "moe_norm_min": 1e-12"#;
        assert_eq!(graph, decoder(all).unwrap());
    }

    #[test]
    fn layers_have_experts_from_the_first_to_the_last_at_an_interval() {
        let routed = |more: &str| count(&decoder(more).unwrap(), "route");
        assert_eq!(routed(r#", "moe_layer_start_index": 0, "moe_layer_end_index": 2"#), 3);
        assert_eq!(routed(r#", "moe_layer_start_index": 0, "moe_layer_interval": 2"#), 2);
        assert_eq!(routed(r#", "moe_layer_start_index": 2, "moe_layer_end_index": 1"#), 0);
        insta::assert_snapshot!(
            decoder(r#", "moe_norm_min": 0"#).unwrap_err(),
            @"config.json: moe_norm_min is 0, expected a positive number"
        );
    }
}
