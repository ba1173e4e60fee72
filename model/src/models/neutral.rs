//! Keys of config.json that change the computation of some model, each with the value that changes nothing.
//!
//! Entry point: [`require`]. A family names the keys that it understands. All other keys of this list must be absent,
//! null or neutral, or the checkpoint is refused. Without this check, a checkpoint with a variation that the family's
//! file does not know could generate nonsense.

use super::{Config, ModelError};

/// Pairs of a key and its neutral value, as JSON text.
const NEUTRAL: &[(&str, &str)] = &[
    ("add_cross_attention", "false"),
    ("alibi", "false"),
    ("attention_bias", "false"),
    ("attention_chunk_size", "null"),
    ("attention_k_eq_v", "false"),
    ("attention_multiplier", "null"),
    ("attention_out_bias", "false"),
    ("attn_logit_softcapping", "null"),
    ("attn_temperature_tuning", "false"),
    ("bias", "false"),
    ("clip_qkv", "null"),
    ("dim_model_base", "null"),
    ("embedding_multiplier", "1"),
    ("enable_moe_block", "false"),
    ("final_logit_softcapping", "null"),
    ("first_k_dense_replace", "0"),
    ("global_attn_every_n_layers", "null"),
    ("global_head_dim", "null"),
    ("hidden_size_per_layer_input", "0"),
    ("interleave_moe_layer_step", "null"),
    ("intermediate_size_mlp", "null"),
    ("kv_lora_rank", "null"),
    ("layer_rope_theta", "null"),
    ("layer_types", "null"),
    ("logit_scale", "null"),
    ("logits_scaling", "1"),
    ("mlp_bias", "false"),
    ("mlp_layer_types", "null"),
    ("moe_layer_freq", "null"),
    ("moe_layers", "null"),
    ("moe_num_experts", "null"),
    ("multi_query", "false"),
    ("mup_enabled", "false"),
    ("n_group", "1"),
    ("n_routed_experts", "null"),
    ("n_shared_experts", "null"),
    ("no_rope_layer_interval", "null"),
    ("no_rope_layers", "null"),
    ("num_dense_layers", "0"),
    ("num_experts", "null"),
    ("num_global_key_value_heads", "null"),
    ("num_kv_shared_layers", "0"),
    ("num_local_experts", "null"),
    ("num_shared_experts", "null"),
    ("parallel_attn", "false"),
    ("partial_rotary_factor", "1"),
    ("per_layer_config", "null"),
    ("q_lora_rank", "null"),
    ("qk_layernorm", "false"),
    ("qkv_bias", "false"),
    ("query_pre_attn_scalar", "null"),
    ("residual_multiplier", "1"),
    ("rope_local_base_freq", "null"),
    ("rotary_dim", "null"),
    ("rotary_pct", "1"),
    ("route_scale", "1"),
    ("routed_scaling_factor", "1"),
    ("scale_attn_by_inverse_layer_idx", "false"),
    ("scale_attn_weights", "true"),
    ("scale_depth", "null"),
    ("scale_emb", "1"),
    ("scoring_func", "null"),
    ("shared_intermediate_size", "0"),
    ("sliding_window", "null"),
    ("sliding_window_pattern", "null"),
    ("swiglu_alpha", "null"),
    ("swiglu_limit", "null"),
    ("topk_group", "1"),
    ("topk_method", "null"),
    ("use_bias", "false"),
    ("use_bidirectional_attention", "false"),
    ("use_double_wide_mlp", "false"),
    ("use_parallel_residual", "false"),
    ("use_post_norm", "false"),
    ("use_qk_norm", "false"),
    ("use_qkv_bias", "false"),
    ("use_sinks", "false"),
    ("use_sliding_window", "false"),
];

/// Refuses every key of [`NEUTRAL`] that `understood` does not contain and whose value is neither null nor neutral.
///
/// # Errors
/// When there is such a key. The message names the key, its value and the supported value.
pub(super) fn require(config: &Config, understood: &[&str]) -> Result<(), ModelError> {
    // A family may read these keys only beside certain values of others, so all of them count as read.
    understood.iter().for_each(|key| _ = config.has(key));
    let others: Vec<(&str, &str)> = NEUTRAL.iter().copied().filter(|(key, _)| !understood.contains(key)).collect();
    config.require_fixed(&others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twist_must_be_understood() {
        let config = Config::parse(br#"{"sliding_window": 8, "mlp_bias": false, "logit_scale": null}"#).unwrap();
        assert!(require(&config, &["sliding_window"]).is_ok());
        let message = require(&config, &["mlp_bias"]).unwrap_err().to_string();
        insta::assert_snapshot!(message, @"config.json: sliding_window is 8; only null is supported");
    }

    #[test]
    fn keys_are_in_order_and_once() {
        assert!(NEUTRAL.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
