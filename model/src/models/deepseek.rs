//! Models with latent attention: DeepSeek V2 and V3, and others of their form.
//!
//! Papers: DeepSeek-AI, 2024 (arXiv 2405.04434 and 2412.19437). Follows `transformers/models/deepseek_v2` and
//! `deepseek_v3`, and `youtu/modeling_youtu.py`. Differences from Llama: the heads of a layer share one latent vector
//! per token, from which keys and values are computed; positions rotate only a part of a key.

use std::sync::Arc;

use numbers::FloatType;

use super::decoder::Decoder;
use super::{Config, Model, ModelError, neutral, rope_config};
use crate::graph::Pairing;
use crate::layers::LatentForm;

/// The keys of config.json that describe latent attention.
pub(super) const LATENT_KEYS: [&str; 2] = ["kv_lora_rank", "q_lora_rank"];

/// Builds Youtu, DeepSeek V3 without experts; see [`super::build`].
pub(super) fn build_youtu(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    neutral::require(config, &[&LATENT_KEYS[..], &["attention_bias"]].concat())?;
    let mut decoder = Decoder::llama(&config.or_default("tie_word_embeddings", true), dtype, num_ranks)?;
    set_latent(&mut decoder, config, pairing(config)?)?;
    decoder.build()
}

/// Returns the pairs of values that are rotated together, adjacent ones unless config.json says otherwise.
fn pairing(config: &Config) -> Result<Pairing, ModelError> {
    let is_interleaved = config.flag_or("rope_interleave", true)?;
    Ok(if is_interleaved { Pairing::Neighbours } else { Pairing::Halves })
}

/// Gives the layers latent attention with the sizes in `config`.
///
/// # Errors
/// When a size is missing or malformed, or there are fewer KV heads than heads.
pub(super) fn set_latent(decoder: &mut Decoder, config: &Config, pairing: Pairing) -> Result<(), ModelError> {
    let hidden_size = decoder.attention.hidden_size;
    let num_attention_heads = decoder.attention.num_attention_heads;
    if config.size_or("num_key_value_heads", num_attention_heads)? != num_attention_heads {
        let found = config.size("num_key_value_heads")?;
        return Err(config.invalid("num_key_value_heads", found, "num_attention_heads, because heads share a latent"));
    }
    let q_lora_rank = if config.has("q_lora_rank") { Some(config.size("q_lora_rank")?) } else { None };
    let [qk_nope_head_dim, qk_rope_head_dim] = [config.size("qk_nope_head_dim")?, config.size("qk_rope_head_dim")?];
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
        v_head_dim: config.size_or("v_head_dim", hidden_size / num_attention_heads)?,
        has_bias: config.flag_or("attention_bias", false)?,
        scale: (rope_config::score_factor(config)? / qk_head_dim.sqrt()) as f32,
    });
    Ok(())
}
