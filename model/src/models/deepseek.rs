//! Models with latent attention: DeepSeek V2 and V3, Kimi K2 to K2.6, GLM 4.7 Flash, Mistral Small 4 and Youtu.
//!
//! Papers: DeepSeek-AI, 2024 (arXiv 2405.04434 and 2412.19437). Follows `transformers/models/deepseek_v2`,
//! `deepseek_v3`, `glm4_moe_lite`, `kimi_k25`, `mistral4` and `youtu`. Differences from Llama: the heads of a layer
//! share one latent vector per token, from which keys and values are computed; positions rotate only a part of a key;
//! most layers have experts. The layers after the last one, which predict further tokens, are not read.

use std::sync::Arc;

use numbers::FloatType;

use super::decoder::Decoder;
use super::sigmoid_experts::{self, Names};
use super::{Config, Model, ModelError, mistral, neutral, rope_config};
use crate::graph::{ExpertGroups, Pairing, Scoring};
use crate::layers::{ExpertNames, LatentForm};

/// The keys of config.json that describe latent attention.
pub(super) const LATENT_KEYS: [&str; 2] = ["kv_lora_rank", "q_lora_rank"];

/// The key that says that each head's two matrices are two tensors. Only `gguf` writes it.
pub(super) const GGUF_SPLIT_HEADS: &str = "gguf_split_heads";

/// Builds DeepSeek V3, Kimi K2 and the text model of Kimi K2.5 and K2.6; see [`super::build`].
pub(super) fn build_v3(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let config = config.or_default("first_k_dense_replace", 3).or_default("n_group", 8).or_default("topk_group", 4);
    let config = config.or_default("routed_scaling_factor", 2.5).or_default("num_experts_per_tok", 8);
    build_sparse(&config, dtype, num_ranks)
}

/// Builds GLM 4.7 Flash; see [`super::build`].
pub(super) fn build_glm(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let config = config.or_default("first_k_dense_replace", 1).or_default("rms_norm_eps", 1e-5);
    let config = config.or_default("routed_scaling_factor", 1.8).or_default("num_experts_per_tok", 4);
    build_sparse(&config, dtype, num_ranks)
}

/// Builds a model with experts that are chosen by sigmoids.
fn build_sparse(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let config = &config.or_default("n_shared_experts", 1).or_default("norm_topk_prob", true);
    neutral::require(config, &understood())?;
    let mut decoder = decoder(config, dtype, num_ranks, pairing(config)?)?;
    sigmoid_experts::set(&mut decoder, config, &Names::DEEPSEEK)?;
    decoder.build()
}

/// Builds DeepSeek V2, whose experts are chosen by a softmax; see [`super::build`].
pub(super) fn build_v2(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[&understood()[..], &["mlp_bias"]].concat())?;
    config.require_fixed(&[("norm_topk_prob", "false"), ("scoring_func", "\"softmax\"")])?;
    let has_groups = match config.text("topk_method")? {
        None | Some("greedy") => false,
        Some("group_limited_greedy") => true,
        Some(other) => {
            let found = format!("\"{other}\"");
            return Err(config.invalid("topk_method", found, "greedy or group_limited_greedy"));
        }
    };
    let config = config.without(&["scoring_func", "topk_method"]).or_default("n_shared_experts", 2);
    let config = if has_groups { config } else { config.without(&["n_group", "topk_group"]) };
    let mut decoder = decoder(&config, dtype, num_ranks, Pairing::Neighbours)?;
    sigmoid_experts::set(&mut decoder, &config, &Names::DEEPSEEK)?;
    if let Some(experts) = &mut decoder.experts {
        experts.router.bias = None;
        experts.router.spec.scoring = Scoring::Softmax;
        // The value of a group is the score of its best expert.
        let groups = experts.router.spec.groups;
        experts.router.spec.groups = groups.map(|groups| ExpertGroups { num_summed: 1, ..groups });
    }
    decoder.build()
}

fn understood() -> Vec<&'static str> {
    [&LATENT_KEYS[..], &sigmoid_experts::KEYS, &["attention_bias", "mlp_layer_types", "n_shared_experts"]].concat()
}

/// Builds Youtu, which has no experts; see [`super::build`].
pub(super) fn build_youtu(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[&LATENT_KEYS[..], &["attention_bias"]].concat())?;
    let config = config.or_default("tie_word_embeddings", true);
    decoder(&config, dtype, num_ranks, pairing(&config)?)?.build()
}

/// Builds Mistral Small 4; see [`super::build`].
pub(super) fn build_mistral4(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    const PARTIAL: &str = "partial_rotary_factor";
    let config = config.or_default("n_shared_experts", 1).or_default("norm_topk_prob", true);
    neutral::require(&config, &understood())?;
    let (growth, config) = mistral::query_growth(&config)?;
    let [nope, rope] = [config.size("qk_nope_head_dim")?, config.size("qk_rope_head_dim")?];
    let (share, rotary) = (rope as f64 / (nope + rope) as f64, config.rotary()?);
    let partial = rotary.map_or(Ok(share), |rotary| rotary.number_or(PARTIAL, share))?;
    if (partial - share).abs() > 1e-6 {
        return Err(config.invalid(PARTIAL, partial, "the share of qk_rope_head_dim in a head"));
    }
    let config = config.without_rotary_keys(&[PARTIAL]);
    let mut decoder = decoder(&config, dtype, num_ranks, pairing(&config)?)?;
    decoder.latent.iter_mut().for_each(|latent| latent.query_growth = Some(growth));
    sigmoid_experts::set(&mut decoder, &config, &Names::DEEPSEEK)?;
    if let Some(experts) = &mut decoder.experts {
        experts.names = ExpertNames::Rows(["experts.gate_up_proj", "experts.down_proj"]);
        experts.router.bias = None;
        experts.router.spec.scoring = Scoring::Softmax;
    }
    decoder.build()
}

/// Returns the pairs of values that are rotated together, adjacent ones unless config.json says otherwise.
fn pairing(config: &Config) -> Result<Pairing, ModelError> {
    let is_interleaved = config.flag_or("rope_interleave", true)?;
    Ok(if is_interleaved { Pairing::Neighbours } else { Pairing::Halves })
}

/// Returns the description of a Llama with latent attention.
///
/// # Errors
/// When a size is missing or malformed, or there are fewer KV heads than heads.
pub(super) fn decoder(
    config: &Config,
    dtype: FloatType,
    num_ranks: usize,
    pairing: Pairing,
) -> Result<Decoder, ModelError> {
    let qk_rope_head_dim = config.size("qk_rope_head_dim")?;
    // Positions rotate this part of a head only, whatever size transformers writes.
    let config = &config.without(&["head_dim"]).or_default("head_dim", qk_rope_head_dim);
    let mut decoder = Decoder::llama(config, dtype, num_ranks)?;
    let hidden_size = decoder.attention.hidden_size;
    let num_attention_heads = decoder.attention.num_attention_heads;
    if config.size_or("num_key_value_heads", num_attention_heads)? != num_attention_heads {
        let found = config.size("num_key_value_heads")?;
        return Err(config.invalid("num_key_value_heads", found, "num_attention_heads, because heads share a latent"));
    }
    let q_lora_rank = if config.has("q_lora_rank") { Some(config.size("q_lora_rank")?) } else { None };
    let qk_nope_head_dim = config.size("qk_nope_head_dim")?;
    let rotary = Arc::new(rope_config::read(config, qk_rope_head_dim, pairing)?);
    decoder.layers.iter_mut().for_each(|layer| layer.rotary = Some(Arc::clone(&rotary)));
    let qk_head_dim = (qk_nope_head_dim + qk_rope_head_dim) as f64;
    decoder.latent = Some(LatentForm {
        hidden_size,
        num_attention_heads,
        q_lora_rank,
        kv_lora_rank: config.size("kv_lora_rank")?,
        qk_nope_head_dim,
        qk_rope_head_dim,
        has_split_heads: config.flag_or(GGUF_SPLIT_HEADS, false)?,
        v_head_dim: config.size_or("v_head_dim", hidden_size / num_attention_heads)?,
        has_bias: config.flag_or("attention_bias", false)?,
        scale: (rope_config::score_factor(config)? / qk_head_dim.sqrt()) as f32,
        query_growth: None,
    });
    Ok(decoder)
}
