//! Hunyuan with experts, such as Hunyuan-A13B.
//!
//! Described in github.com/Tencent-Hunyuan/Hunyuan-A13B, 2025. Follows
//! `transformers/models/hunyuan_v1_moe/modeling_hunyuan_v1_moe.py`. Differences from dense Hunyuan: all layers have
//! experts, whose weights add up to 1, and a shared expert of the same width. The matrix of the router is f32 in any
//! case.

use numbers::FloatType;

use super::decoder::{ExpertsForm, SharedForm};
use super::{Config, Model, ModelError, hunyuan, neutral};
use crate::layers::{ExpertNames, RouterForm};

/// Keys of the published checkpoints, each with the only value that is served.
const FIXED: [(&str, &str); 2] = [("moe_layer_num_skipped", "0"), ("use_mixed_mlp_moe", "true")];

/// Builds the model; see [`super::build`].
pub(super) fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &["attention_bias", "num_experts", "use_qk_norm"])?;
    config.require_fixed(&FIXED)?;
    let mut decoder = hunyuan::decoder(config, dtype, num_ranks)?;
    let intermediate_size = decoder.mlp.intermediate_size;
    for (key, only) in [("moe_intermediate_size", intermediate_size), ("num_shared_expert", 1)] {
        let found = config.same_size_or(key, only)?;
        if found != only {
            return Err(config.unsupported(key, found, &only.to_string()));
        }
    }
    let router = RouterForm::softmax("gate.wg", config.same_size_or("moe_topk", 1)?, true);
    decoder.experts = Some(ExpertsForm {
        scope: "mlp",
        names: ExpertNames::Each(["gate_proj", "up_proj", "down_proj"]),
        gating: decoder.mlp.activation.into(),
        intermediate_size,
        num_experts: config.same_size_or("num_experts", 1)?,
        router: RouterForm { is_f32: true, ..router },
        shared: Some(SharedForm { scope: "mlp.shared_mlp", intermediate_size, gate: None }),
    });
    decoder.layers.iter_mut().for_each(|layer| layer.has_experts = true);
    decoder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder(more: &str) -> Result<String, String> {
        let json = format!(
            r#"{{"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2,
            "intermediate_size": 8{more}}}"#
        );
        let config = Config::parse(json.as_bytes()).unwrap();
        let model = build(&config, FloatType::Bf16, 1).map_err(|error| error.to_string())?;
        Ok(model.decoder.to_string())
    }

    #[test]
    fn keys_may_repeat_one_number_for_each_layer() {
        let plain = decoder(r#", "num_experts": 4, "moe_topk": 2"#).unwrap();
        let listed = r#", "num_experts": 4, "moe_topk": [2, 2], "moe_intermediate_size": [8, 8],
            "num_shared_expert": [1, 1], "use_mixed_mlp_moe": true, "moe_layer_num_skipped": 0"#;
        assert_eq!(plain, decoder(listed).unwrap());
        for (wrong, expected) in [
            (
                r#", "moe_topk": [2, 1]"#,
                "moe_topk is [2,1], expected a positive integer up to 2147483647, or a list that repeats one",
            ),
            (r#", "moe_intermediate_size": 16"#, "moe_intermediate_size is 16; only 8 is supported"),
            (r#", "num_shared_expert": [2, 2]"#, "num_shared_expert is 2; only 1 is supported"),
            (r#", "use_mixed_mlp_moe": false"#, "use_mixed_mlp_moe is false; only true is supported"),
        ] {
            let message = decoder(&format!(r#", "num_experts": 4{wrong}"#)).unwrap_err();
            assert_eq!(message, format!("config.json: {expected}"));
        }
    }
}
