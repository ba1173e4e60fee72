//! The tensors of a GGUF file, under their names in a Hugging Face checkpoint.
//!
//! Entry points: [`places`], [`rope_factors`]. Candle decodes blocks of quantized values. An unsupported type is an
//! error that names the tensor.

use candle_core::quantized::GgmlDType;
use model_files::Gguf;

use super::{StoredType, TensorPlace, WeightsError};

/// The prefix in a GGUF file, and the prefix in a Hugging Face checkpoint, of the tensors outside of layers.
const SINGLE: [(&str, &str); 3] =
    [("output.", "lm_head."), ("output_norm.", "model.norm."), ("token_embd.", "model.embed_tokens.")];
/// The same for the tensors of each layer, without the prefix of the layer.
const LAYER: [(&str, &str); 11] = [
    ("attn_k.", "self_attn.k_proj."),
    ("attn_k_norm.", "self_attn.k_norm."),
    ("attn_norm.", "input_layernorm."),
    ("attn_output.", "self_attn.o_proj."),
    ("attn_q.", "self_attn.q_proj."),
    ("attn_q_norm.", "self_attn.q_norm."),
    ("attn_v.", "self_attn.v_proj."),
    ("ffn_down.", "mlp.down_proj."),
    ("ffn_gate.", "mlp.gate_proj."),
    ("ffn_norm.", "post_attention_layernorm."),
    ("ffn_up.", "mlp.up_proj."),
];
/// Prefixes that differ in models with norms after attention and after the feed-forward network.
const LAYER_WITH_POST_NORMS: [(&str, &str); 3] = [
    ("ffn_norm.", "pre_feedforward_layernorm."),
    ("post_attention_norm.", "post_attention_layernorm."),
    ("post_ffw_norm.", "post_feedforward_layernorm."),
];
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Returns the places of all tensors, under their names in a Hugging Face checkpoint. A tensor that is not in the
/// tables above keeps its name.
///
/// # Errors
/// [`WeightsError::Block`] or [`WeightsError::Truncated`], with the tensor's own name.
pub(super) fn places(gguf: &Gguf, file: &str, file_len: usize) -> Result<Vec<(String, TensorPlace)>, WeightsError> {
    let architecture = gguf.text("general.architecture").unwrap_or_default();
    let has_post_norms = matches!(architecture, "gemma2" | "gemma3");
    let place = |tensor: &model_files::TensorInfo| {
        let kind = kind(tensor.kind).filter(|kind| {
            let num_columns = if tensor.shape.len() < 2 { 1 } else { tensor.shape[tensor.shape.len() - 1] };
            num_columns.is_multiple_of(kind.block_size())
        });
        let kind = kind.ok_or_else(|| WeightsError::Block {
            tensor: tensor.name.clone(),
            file: file.to_owned(),
            kind: tensor.kind,
            shape: tensor.shape.clone(),
        })?;
        let num_elements = tensor.shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
        let range = num_elements.and_then(|num_elements| {
            let num_bytes = (num_elements / kind.block_size()).checked_mul(kind.type_size())?;
            let start = usize::try_from(gguf.data_start.checked_add(tensor.offset)?).ok()?;
            let end = start.checked_add(num_bytes)?;
            (end <= file_len).then_some(start..end)
        });
        let truncated = || WeightsError::Truncated { tensor: tensor.name.clone(), file: file.to_owned() };
        // The converter has added the 1 that Gemma adds to its norm weights at run time, so it is subtracted here.
        let is_raised = architecture.starts_with("gemma") && tensor.name.ends_with("norm.weight");
        let stored = StoredType::Blocks { kind, added: if is_raised { -1.0 } else { 0.0 } };
        let place = TensorPlace { file: 0, stored, shape: tensor.shape.clone(), range: range.ok_or_else(truncated)? };
        Ok((name(&tensor.name, has_post_norms), place))
    };
    gguf.tensors.iter().map(place).collect()
}

/// Returns the divisors of the frequencies of rotary embeddings, if the file has them.
///
/// # Errors
/// When the file cannot be opened as a checkpoint, or the divisors are quantized.
pub fn rope_factors(gguf: &Gguf) -> Result<Option<Vec<f32>>, WeightsError> {
    if !gguf.tensors.iter().any(|tensor| tensor.name == ROPE_FACTORS) {
        return Ok(None);
    }
    let checkpoint = super::Checkpoint::of_gguf(gguf)?;
    checkpoint.all_floats(ROPE_FACTORS).map(Some)
}

/// Returns the name that the tensor `own` has in a Hugging Face checkpoint, or `own` if it is in no table.
fn name(own: &str, has_post_norms: bool) -> String {
    let renamed = |table: &[(&str, &str)], prefix: &str, own: &str| {
        let row = table.iter().find(|(from, _)| own.starts_with(from))?;
        Some(format!("{prefix}{}{}", row.1, &own[row.0.len()..]))
    };
    let found = match own.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        None => renamed(&SINGLE, "", own),
        Some((layer, own)) => {
            let prefix = format!("model.layers.{layer}.");
            let special = has_post_norms.then(|| renamed(&LAYER_WITH_POST_NORMS, &prefix, own)).flatten();
            special.or_else(|| renamed(&LAYER, &prefix, own))
        }
    };
    found.unwrap_or_else(|| own.to_owned())
}

/// Returns candle's type for a number of `ggml_type`; `None` if it is not supported.
fn kind(number: u32) -> Option<GgmlDType> {
    Some(match number {
        0 => GgmlDType::F32,
        1 => GgmlDType::F16,
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        30 => GgmlDType::BF16,
        _ => return None,
    })
}
