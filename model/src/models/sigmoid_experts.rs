//! Mixtures of experts as in DeepSeek V3, which several families share.
//!
//! Described in DeepSeek-AI, 2024 (arXiv 2412.19437, section 2.1.2). Follows `DeepseekV3MoE` of
//! `transformers/models/deepseek_v3/modeling_deepseek_v3.py`. Entry point: [`set`]. The weights of experts are
//! sigmoids. A bias of each expert changes which experts are chosen, but not their weights. If there are groups, a
//! token chooses among the groups whose two best experts have the largest sums. The weights are multiplied by a factor.
//! All tokens pass the shared experts, and the first layers have no experts.

use super::decoder::{Decoder, ExpertsForm, SharedForm};
use super::{Config, ModelError};
use crate::graph::{ExpertGroups, RouterSpec, Scoring};
use crate::layers::{ChoiceBias, ExpertNames, RouterForm};

/// The keys of config.json that [`set`] reads, and that other families refuse.
pub(super) const KEYS: [&str; 8] = [
    "first_k_dense_replace",
    "moe_layer_freq",
    "n_group",
    "n_routed_experts",
    "routed_scaling_factor",
    "scoring_func",
    "topk_group",
    "topk_method",
];

/// The keys and names in which families differ.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// The key of the number of experts.
    pub(super) num_experts: &'static str,
    /// The key of the number of shared experts, each as wide as an expert.
    pub(super) num_shared: &'static str,
    /// The name of the router's linear layer, in the layer's `mlp`.
    pub(super) router: &'static str,
    /// The name of the router's bias tensor, in the layer's `mlp`.
    pub(super) bias: &'static str,
    /// The scope of the shared experts in a layer.
    pub(super) shared: &'static str,
}

impl Names {
    pub(super) const DEEPSEEK: Self = Self {
        num_experts: "n_routed_experts",
        num_shared: "n_shared_experts",
        router: "gate",
        bias: "gate.e_score_correction_bias",
        shared: "mlp.shared_experts",
    };
}

/// The number that transformers adds to the sum of the weights.
const LEAST_SUM: f32 = 1e-20;

/// Gives experts to the layers from `first_k_dense_replace` on, or to those that `mlp_layer_types` lists as `sparse`.
///
/// # Errors
/// When a key is missing or malformed, or the numbers of experts, groups and choices do not fit each other.
pub(super) fn set(decoder: &mut Decoder, config: &Config, names: &Names) -> Result<(), ModelError> {
    config.require_fixed(&[("moe_layer_freq", "1"), ("topk_method", "\"noaux_tc\"")])?;
    if let Some(other) = config.text("scoring_func")?.filter(|name| !["noaux_tc", "sigmoid"].contains(name)) {
        return Err(config.invalid("scoring_func", format!("\"{other}\""), "sigmoid"));
    }
    let num_experts = config.size(names.num_experts)?;
    let is_normalised = config.flag_or("norm_topk_prob", false)?;
    let factor = config.number_or("routed_scaling_factor", 1.0)?;
    if factor <= 0.0 || factor > f64::from(f32::MAX) {
        return Err(config.invalid("routed_scaling_factor", factor, "a positive number"));
    }
    let spec = RouterSpec {
        num_chosen: config.size("num_experts_per_tok")?,
        scoring: Scoring::Sigmoid,
        groups: groups(config, num_experts)?,
        least_sum: is_normalised.then_some(LEAST_SUM),
    };
    let intermediate_size = config.size("moe_intermediate_size")?;
    let num_shared = config.count_or(names.num_shared, 0)?;
    let shared = SharedForm { scope: names.shared, intermediate_size: num_shared * intermediate_size, gate: None };
    let bias = Some(ChoiceBias::Vector(names.bias));
    decoder.experts = Some(ExpertsForm {
        scope: "mlp",
        names: ExpertNames::Each(["gate_proj", "up_proj", "down_proj"]),
        gating: decoder.mlp.activation.into(),
        intermediate_size,
        num_experts,
        router: RouterForm { bias, factor: factor as f32, ..RouterForm::new(names.router, spec) },
        shared: (num_shared > 0).then_some(shared),
    });
    let sparse = sparse_layers(config, decoder.layers.len())?;
    decoder.layers.iter_mut().zip(sparse).for_each(|(layer, is_sparse)| layer.has_experts = is_sparse);
    Ok(())
}

/// Returns the groups of experts; `None` if every token chooses among all experts.
fn groups(config: &Config, num_experts: usize) -> Result<Option<ExpertGroups>, ModelError> {
    let num = config.size_or("n_group", 1)?;
    let num_chosen = config.size_or("topk_group", 1)?;
    if num_chosen > num {
        return Err(config.invalid("topk_group", num_chosen, &format!("at most n_group, {num}")));
    }
    let wanted = config.size("num_experts_per_tok")?;
    if num == num_chosen {
        let fits = wanted <= num_experts;
        let expected = format!("at most the number of experts, {num_experts}");
        return if fits { Ok(None) } else { Err(config.invalid("num_experts_per_tok", wanted, &expected)) };
    }
    let size = num_experts / num;
    if size < 2 || !num_experts.is_multiple_of(num) {
        let expected = format!("a divisor of the number of experts, {num_experts}, that gives groups of 2 or more");
        return Err(config.invalid("n_group", num, &expected));
    }
    let eligible = size * num_chosen;
    if wanted > eligible {
        let expected = format!("at most {eligible}, the experts of {num_chosen} groups");
        return Err(config.invalid("num_experts_per_tok", wanted, &expected));
    }
    Ok(Some(ExpertGroups { num, num_chosen, num_summed: 2 }))
}

/// Returns, for each layer, true if it has experts.
///
/// # Errors
/// When `mlp_layer_types` has an unknown type, or not one for each layer.
pub(super) fn sparse_layers(config: &Config, num_layers: usize) -> Result<Vec<bool>, ModelError> {
    let Some(types) = config.texts("mlp_layer_types")? else {
        let first = config.count_or("first_k_dense_replace", 0)?;
        return Ok((0..num_layers).map(|layer| layer >= first).collect());
    };
    if types.len() != num_layers {
        let found = format!("{} types", types.len());
        return Err(config.invalid("mlp_layer_types", found, &format!("one for each of {num_layers} layers")));
    }
    let is_sparse = |kind: &&str| match *kind {
        "sparse" => Ok(true),
        "dense" => Ok(false),
        other => Err(config.invalid("mlp_layer_types", other, "sparse or dense")),
    };
    types.iter().map(is_sparse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> Config {
        Config::parse(format!(r#"{{"num_experts_per_tok": 4{more}}}"#).as_bytes()).unwrap()
    }

    #[test]
    fn groups_fit_the_experts() {
        let groups = |more: &str| groups(&config(more), 16).map_err(|error| error.to_string());
        let four = ExpertGroups { num: 4, num_chosen: 2, num_summed: 2 };
        assert_eq!(groups(r#", "n_group": 4, "topk_group": 2"#), Ok(Some(four)));
        for none in ["", r#", "n_group": 1"#, r#", "n_group": 4, "topk_group": 4"#] {
            assert_eq!(groups(none), Ok(None), "{none}");
        }
        for (wrong, expected) in [
            (r#", "n_group": 2, "topk_group": 3"#, "topk_group is 3, expected at most n_group, 2"),
            (
                r#", "n_group": 3"#,
                "n_group is 3, expected a divisor of the number of experts, 16, that gives groups of 2 or more",
            ),
            (
                r#", "n_group": 16"#,
                "n_group is 16, expected a divisor of the number of experts, 16, that gives groups of 2 or more",
            ),
            (r#", "n_group": 8"#, "num_experts_per_tok is 4, expected at most 2, the experts of 1 groups"),
        ] {
            assert_eq!(groups(wrong), Err(format!("config.json: {expected}")));
        }
    }

    #[test]
    fn layers_without_experts_are_the_first_or_listed() {
        let sparse = |more: &str| sparse_layers(&config(more), 3).map_err(|error| error.to_string());
        assert_eq!(sparse(""), Ok(vec![true; 3]));
        assert_eq!(sparse(r#", "first_k_dense_replace": 2"#), Ok(vec![false, false, true]));
        assert_eq!(sparse(r#", "mlp_layer_types": ["sparse", "dense", "sparse"]"#), Ok(vec![true, false, true]));
        for (wrong, expected) in [
            (r#"["sparse"]"#, "mlp_layer_types is 1 types, expected one for each of 3 layers"),
            (r#"["sparse", "dense", "hash"]"#, "mlp_layer_types is hash, expected sparse or dense"),
        ] {
            assert_eq!(sparse(&format!(r#", "mlp_layer_types": {wrong}"#)), Err(format!("config.json: {expected}")));
        }
    }
}
