//! Parts of config.json that need more than a row of the table: one function for each architecture.
//!
//! Entry points: the functions, which the rows name. Each changes config.json after all keys of its row are there.

use model_files::GgufValue;
use serde_json::{Map, Value, json};

use super::metadata::Metadata;
use crate::models::ModelError;
use crate::models::deepseek::GGUF_SPLIT_HEADS;

type Config = Map<String, Value>;
type Done = Result<(), ModelError>;

/// Models whose `query_pre_attn_scalar` is `hidden_size / num_attention_heads` instead of the width of a head: their
/// architectures, with their numbers of layers.
const SCALED_BY_WIDTH: [(&str, u64); 2] = [("gemma2", 46), ("gemma3", 62)];

/// The number of experts of Llama 4 Maverick.
const MAVERICK_EXPERTS: u64 = 128;

/// Changes nothing.
pub(super) fn nothing(_: Metadata<'_>, _: &mut Config) -> Done {
    Ok(())
}

/// Llama, and Mixtral, which has experts.
pub(super) fn llama(file: Metadata<'_>, config: &mut Config) -> Done {
    if let Some(count) = file.count("expert_count").filter(|count| *count > 0) {
        set_name(config, "MixtralForCausalLM");
        set(config, "num_local_experts", json!(count));
        set(config, "num_experts_per_tok", json!(file.count("expert_used_count")));
    }
    Ok(())
}

/// Llama 4. The converter writes neither the chunks of attention nor the growth of queries. llama.cpp has the values of
/// the published models, which are also those of a config.json without these keys.
pub(super) fn llama4(file: Metadata<'_>, config: &mut Config) -> Done {
    const WINDOW: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    // The converter writes 0 if no layer has chunks. Which layers of such a model are rotated, it does not write.
    if file.count(WINDOW) == Some(0) {
        return Err(file.unsupported(WINDOW, "a model in which three of four layers have chunks"));
    }
    if file.json(PATTERN).is_some_and(|pattern| pattern != json!(4)) {
        return Err(file.unsupported(PATTERN, "4"));
    }
    set(config, "moe_layers", json!(file.layers_with("ffn_gate_inp.weight")));
    // llama.cpp recognizes Maverick, whose queries and keys are not normalised, by its number of experts.
    set(config, "use_qk_norm", json!(file.count("expert_count") != Some(MAVERICK_EXPERTS)));
    Ok(())
}

/// Models with latent attention.
pub(super) fn latent(file: Metadata<'_>, config: &mut Config) -> Done {
    let rope = file.count("rope.dimension_count").unwrap_or(0);
    let [key, value] = ["key_length", "value_length"].map(|name| {
        let of_head = file.count(&format!("attention.{name}_mla"));
        of_head.or_else(|| file.count(&format!("attention.{name}")))
    });
    set(config, "kv_lora_rank", json!(file.count("attention.kv_lora_rank")));
    set(config, "q_lora_rank", json!(file.count("attention.q_lora_rank")));
    set(config, "qk_rope_head_dim", json!(rope));
    set(config, "qk_nope_head_dim", json!(key.map(|key| key.saturating_sub(rope))));
    let heads = file.count("attention.head_count").unwrap_or(0) as usize;
    let columns = file.tensor("blk.0.attn_output.weight").and_then(|tensor| tensor.shape.get(1).copied());
    let of_tensor = || columns?.checked_div(heads).map(|size| size as u64);
    set(config, "v_head_dim", json!(value.or_else(of_tensor)));
    set(config, "num_key_value_heads", Value::Null);
    set(config, "head_dim", Value::Null);
    set(config, "attention_bias", json!(file.has_inner("attn_kv_a_mqa.bias")));
    set(config, GGUF_SPLIT_HEADS, json!(file.has_inner("attn_k_b.weight")));
    // The converter writes a tenth of the key.
    set_mscale(file, config, 10.0);
    Ok(())
}

/// DeepSeek V2 and V3 and models like them. Those without experts are Youtu, those whose experts have no biases V2.
pub(super) fn deepseek2(file: Metadata<'_>, config: &mut Config) -> Done {
    latent(file, config)?;
    if file.count("expert_count").unwrap_or(0) == 0 {
        set_name(config, "YoutuForCausalLM");
        for key in ["first_k_dense_replace", "n_routed_experts", "n_shared_experts", "n_group", "topk_group"] {
            config.remove(key);
        }
    } else if !["exp_probs_b", "exp_probs_b.bias"].into_iter().any(|name| file.has_inner(name)) {
        set_name(config, "DeepseekV2ForCausalLM");
        let has_groups = file.count("expert_group_count").unwrap_or(1) > 1;
        set(config, "topk_method", json!(if has_groups { "group_limited_greedy" } else { "greedy" }));
    }
    Ok(())
}

/// Models whose builder assumes a rotary scaling if config.json has none.
pub(super) fn unscaled_by_default(_: Metadata<'_>, config: &mut Config) -> Done {
    config.entry("rope_scaling").or_insert_with(|| json!({"rope_type": "default"}));
    Ok(())
}

/// Falcon. With two norms before a layer, or several KV heads, the model has the newer structure.
pub(super) fn falcon(file: Metadata<'_>, config: &mut Config) -> Done {
    let (has_two_norms, heads) = (file.has_inner("attn_norm_2.weight"), file.count("attention.head_count_kv"));
    let is_new = has_two_norms || heads.is_some_and(|heads| heads > 1);
    set(config, "new_decoder_architecture", json!(is_new));
    set(config, "num_ln_in_parallel_attn", json!(if has_two_norms { 2 } else { 1 }));
    set(config, "num_kv_heads", json!(heads));
    set(config, "multi_query", json!(!is_new));
    set(config, "parallel_attn", json!(true));
    set(config, "bias", json!(file.has_inner("attn_qkv.bias")));
    set(config, "ffn_hidden_size", json!(file.num_rows("ffn_up.weight")));
    Ok(())
}

/// Gemma 2 and 3.
pub(super) fn gemma2(file: Metadata<'_>, config: &mut Config) -> Done {
    let is_scaled = file.count("block_count").is_some_and(|num| SCALED_BY_WIDTH.contains(&(file.architecture, num)));
    let [width, heads] = ["embedding_length", "attention.head_count"].map(|name| file.count(name).unwrap_or(0));
    // If the number of heads is 0, the code that reads `num_attention_heads` reports it.
    if let Some(width) = width.checked_div(heads).filter(|_| is_scaled) {
        set(config, "query_pre_attn_scalar", json!(width));
    }
    Ok(())
}

/// Gemma 4, whose layers may differ in the sizes of their heads and of the feed-forward network.
pub(super) fn gemma4(file: Metadata<'_>, config: &mut Config) -> Done {
    let width = file.json("feed_forward_length");
    if let Some(Value::Array(widths)) = width {
        set(config, "intermediate_size", widths.first().cloned().unwrap_or_default());
        set(config, "use_double_wide_mlp", json!(true));
    }
    let num_heads = file.json("attention.head_count_kv").unwrap_or_default();
    let of_layer = |layer: usize| num_heads.get(layer).unwrap_or(&num_heads).clone();
    let kinds = config.get("layer_types").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut layers = Map::new();
    for (layer, kind) in kinds.iter().enumerate() {
        if kind == "full_attention" {
            let keys = json!({"head_dim": file.count("attention.key_length"), "num_key_value_heads": of_layer(layer)});
            layers.insert(layer.to_string(), keys);
        } else {
            set(config, "num_key_value_heads", of_layer(layer));
        }
    }
    // Layers that attend to another's keys have neither keys nor values.
    let (keys, values) = (file.layers_with("attn_k.weight"), file.layers_with("attn_v.weight"));
    set(config, "attention_k_eq_v", json!(keys.len() > values.len()));
    set(config, "per_layer_config", Value::Object(layers));
    set(config, "head_dim", json!(file.count("attention.key_length_swa")));
    if let Some(table) = file.tensor("per_layer_token_embd.weight") {
        set(config, "vocab_size_per_layer_input", json!(table.shape.first()));
    }
    if let Some(count) = file.count("expert_count").filter(|count| *count > 0) {
        set(config, "enable_moe_block", json!(true));
        set(config, "num_experts", json!(count));
        set(config, "top_k_experts", json!(file.count("expert_used_count")));
        set(config, "moe_intermediate_size", json!(file.count("expert_feed_forward_length")));
    }
    // The frequencies that are not rotated are divided by a number that makes them 0.
    let factors = file.factors.all.as_deref().unwrap_or_default();
    let num_rotated = factors.iter().filter(|factor| **factor == 1.0).count();
    let part = if factors.is_empty() { 1.0 } else { num_rotated as f64 / factors.len() as f64 };
    let [full, sliding] = ["rope.freq_base", "rope.freq_base_swa"].map(|name| file.json(name));
    let full = json!({"rope_type": "proportional", "partial_rotary_factor": part, "rope_theta": full});
    let sliding = json!({"rope_type": "default", "rope_theta": sliding});
    config.remove("rope_scaling");
    set(config, "rope_parameters", json!({"full_attention": full, "sliding_attention": sliding}));
    Ok(())
}

/// GPT-2 and StarCoder, whose converters do not write the width of the feed-forward network.
pub(super) fn gpt2(file: Metadata<'_>, config: &mut Config) -> Done {
    set(config, "n_inner", json!(file.num_rows("ffn_up.weight")));
    if file.architecture == "starcoder" {
        set(config, "multi_query", json!(file.count("attention.head_count_kv") == Some(1)));
    }
    Ok(())
}

/// gpt-oss, whose scaling has no bounds of whole frequencies.
pub(super) fn gpt_oss(file: Metadata<'_>, config: &mut Config) -> Done {
    if let Some(scaling) = config.get_mut("rope_scaling").and_then(Value::as_object_mut) {
        scaling.insert("truncate".to_owned(), json!(false));
    }
    unscaled_by_default(file, config)
}

/// Granite 3 with experts; the converter gives the same architecture to models without.
pub(super) fn granite_moe(file: Metadata<'_>, config: &mut Config) -> Done {
    if file.count("expert_count").unwrap_or(0) == 0 {
        set_name(config, "GraniteForCausalLM");
        set(config, "shared_intermediate_size", Value::Null);
        set(config, "num_local_experts", Value::Null);
    }
    Ok(())
}

/// Granite with sliding windows. The converter writes which layers are rotated. All of them have one rotary base.
pub(super) fn granite_swa(file: Metadata<'_>, config: &mut Config) -> Done {
    let theta = config.get("rope_theta").cloned().unwrap_or_default();
    let of_layer =
        |is_rotated: &GgufValue| if *is_rotated == GgufValue::Bool(false) { json!(0) } else { theta.clone() };
    if let Some(pattern) = file.list("attention.rope_pattern") {
        let thetas: Vec<Value> = pattern.iter().map(of_layer).collect();
        set(config, "layer_rope_theta", json!(thetas));
    }
    Ok(())
}

/// Hy3. The converter does not write which layers have experts.
pub(super) fn hy_v3(file: Metadata<'_>, config: &mut Config) -> Done {
    let sparse = file.layers_with("ffn_gate_inp.weight");
    let kind = |layer: u64| if sparse.contains(&layer) { "sparse" } else { "dense" };
    let kinds: Vec<&str> = (0..file.num_layers().unwrap_or(0).min(sparse.len() as u64 * 64)).map(kind).collect();
    set(config, "mlp_layer_types", json!(kinds));
    let [shared, own] =
        ["expert_shared_feed_forward_length", "expert_feed_forward_length"].map(|name| file.count(name).unwrap_or(0));
    set(config, "num_shared_experts", json!(shared.checked_div(own)));
    Ok(())
}

/// Mistral Small 3, and Ministral 3, whose queries grow with their position.
pub(super) fn mistral3(file: Metadata<'_>, config: &mut Config) -> Done {
    let Some(beta) = file.json("attention.temperature_scale") else { return Ok(()) };
    set_name(config, "Ministral3ForCausalLM");
    set_mscale(file, config, 1.0);
    if let Some(scaling) = config.get_mut("rope_scaling").and_then(Value::as_object_mut) {
        scaling.insert("llama_4_scaling_beta".to_owned(), beta);
    }
    Ok(())
}

/// Mistral Small 4, the text model of a composite. Without the key of their growth, queries do not grow, as in
/// llama.cpp.
pub(super) fn mistral4(file: Metadata<'_>, config: &mut Config) -> Done {
    latent(file, config)?;
    let beta = file.json("attention.temperature_scale").unwrap_or(json!(0.0));
    if let Some(scaling) = config.get_mut("rope_scaling").and_then(Value::as_object_mut) {
        scaling.insert("llama_4_scaling_beta".to_owned(), beta);
    }
    let mut text = std::mem::take(config);
    for key in ["architectures", "dtype", "eos_token_id", "tie_word_embeddings"] {
        config.extend(text.remove(key).map(|value| (key.to_owned(), value)));
    }
    set(&mut text, "model_type", json!("mistral4"));
    set(config, "text_config", Value::Object(text));
    Ok(())
}

/// MPT, whose attention has keys of its own.
pub(super) fn mpt(file: Metadata<'_>, config: &mut Config) -> Done {
    if file.number("attention.max_alibi_bias").is_none_or(|bias| bias <= 0.0) {
        return Err(file.unsupported("attention.max_alibi_bias", "a positive number"));
    }
    set(
        config,
        "attn_config",
        json!({"alibi": true, "alibi_bias_max": file.json("attention.max_alibi_bias"),
        "clip_qkv": file.json("attention.clamp_kqv")}),
    );
    Ok(())
}

/// OLMo 2, and OLMo 3, which has windows.
pub(super) fn olmo2(_: Metadata<'_>, config: &mut Config) -> Done {
    if config.contains_key("layer_types") {
        set_name(config, "Olmo3ForCausalLM");
    }
    Ok(())
}

/// GLM-4. In models for images, the converter sorts the rows of queries and keys.
pub(super) fn without_sections(file: Metadata<'_>, _: &mut Config) -> Done {
    const SECTIONS: &str = "rope.dimension_sections";
    match file.list(SECTIONS).is_some_and(|sections| sections.iter().any(|size| *size != GgufValue::Integer(0))) {
        true => Err(file.unsupported(SECTIONS, "a model without sections")),
        false => Ok(()),
    }
}

/// Sets the factors by which yarn raises attention scores. The metadata has one number for both, divided by `divisor`.
fn set_mscale(file: Metadata<'_>, config: &mut Config, divisor: f64) {
    let scaling = config.get_mut("rope_scaling").and_then(Value::as_object_mut);
    if let (Some(scaling), Some(number)) = (scaling, file.number("rope.scaling.yarn_log_multiplier")) {
        for key in ["mscale", "mscale_all_dim"] {
            scaling.insert(key.to_owned(), json!(number * divisor));
        }
    }
}

fn set(config: &mut Config, key: &str, value: Value) {
    config.insert(key.to_owned(), value);
}

fn set_name(config: &mut Config, name: &str) {
    set(config, "architectures", json!([name]));
}
