//! The tensors of GGUF files, under their names in a Hugging Face checkpoint.
//!
//! Entry points: [`places`], [`values`], [`rope_factors`]. An unsupported type is an error that names the tensor.

use std::fmt;

use model_files::{Gguf, GgufValue, TensorInfo};
use numbers::blocks::BlockType;
use numbers::{FloatType, mxfp4};

use super::{StoredType, TensorPlace, WeightsError};
use crate::models::{GgufRow, gguf_row};

/// The prefix in a GGUF file, and the prefix in a Hugging Face checkpoint, of the tensors outside of layers.
const OUTER: [(&str, &str); 3] =
    [("output.", "lm_head."), ("output_norm.", "model.norm."), ("token_embd.", "model.embed_tokens.")];
/// The same for the tensors of each layer, without the prefix of the layer.
const INNER: [(&str, &str); 31] = [
    ("attn_k.", "self_attn.k_proj."),
    ("attn_k_b.", "self_attn.k_b_proj."),
    ("attn_k_norm.", "self_attn.k_norm."),
    ("attn_kv_a_mqa.", "self_attn.kv_a_proj_with_mqa."),
    ("attn_kv_a_norm.", "self_attn.kv_a_layernorm."),
    ("attn_kv_b.", "self_attn.kv_b_proj."),
    ("attn_norm.", "input_layernorm."),
    ("attn_output.", "self_attn.o_proj."),
    ("attn_q.", "self_attn.q_proj."),
    ("attn_q_a.", "self_attn.q_a_proj."),
    ("attn_q_a_norm.", "self_attn.q_a_layernorm."),
    ("attn_q_b.", "self_attn.q_b_proj."),
    ("attn_q_norm.", "self_attn.q_norm."),
    ("attn_qkv.", "self_attn.qkv_proj."),
    ("attn_sinks.weight", "self_attn.sinks"),
    ("attn_v.", "self_attn.v_proj."),
    ("attn_v_b.", "self_attn.v_b_proj."),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn_down.", "mlp.down_proj."),
    ("ffn_down_exps.", "mlp.experts.down_proj."),
    ("ffn_down_shexp.", "mlp.shared_experts.down_proj."),
    ("ffn_gate.", "mlp.gate_proj."),
    ("ffn_gate_exps.", "mlp.experts.gate_proj."),
    ("ffn_gate_inp.", "mlp.gate."),
    ("ffn_gate_shexp.", "mlp.shared_experts.gate_proj."),
    ("ffn_norm.", "post_attention_layernorm."),
    ("ffn_up.", "mlp.up_proj."),
    ("ffn_up_exps.", "mlp.experts.up_proj."),
    ("ffn_up_shexp.", "mlp.shared_experts.up_proj."),
    ("post_attention_norm.", "post_attention_layernorm."),
    ("post_ffw_norm.", "post_feedforward_layernorm."),
];

/// The keys of numbers of layers, and the names of the tensors in their place.
const VALUES: [(&str, &str); 4] = [
    ("xielu.alpha_n", "mlp.act_fn.alpha_n"),
    ("xielu.alpha_p", "mlp.act_fn.alpha_p"),
    ("xielu.beta", "mlp.act_fn.beta"),
    ("xielu.eps", "mlp.act_fn.eps"),
];

/// The type of the elements of a tensor in a GGUF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufType {
    Floats(FloatType),
    Blocks(BlockType),
}

/// The types of `ggml_type` that [`GgufType`] does not have, with their numbers.
const OTHERS: [(u32, &str); 16] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (MXFP4, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

/// The divisors of the frequencies of rotary embeddings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RopeFactors {
    /// Those for sequences of any length.
    pub all: Option<Vec<f32>>,
    /// Those for sequences that are longer than the original context.
    pub long: Option<Vec<f32>>,
    /// Those for other sequences.
    pub short: Option<Vec<f32>>,
}

/// Returns the places of all tensors, under their names in a Hugging Face checkpoint. A tensor that is not in the
/// tables keeps its name. `files` has the name and the length of each file.
///
/// # Errors
/// [`WeightsError::Block`] or [`WeightsError::Truncated`], with the tensor's own name.
pub(super) fn places(gguf: &Gguf, files: &[(&str, usize)]) -> Result<Vec<(String, TensorPlace)>, WeightsError> {
    let row = gguf_row(gguf.text("general.architecture").unwrap_or_default());
    let place = |tensor: &TensorInfo| {
        let (file, file_len) = files[tensor.file];
        // The converter has added 1 to the weights of some norms, so it is subtracted here.
        let is_raised = row.is_some_and(|row| row.has_raised_norms) && tensor.name.ends_with("norm.weight");
        let stored = stored_type(tensor, if is_raised { -1.0 } else { 0.0 }).ok_or_else(|| WeightsError::Block {
            tensor: tensor.name.clone(),
            file: file.to_owned(),
            kind: number_and_name(tensor.kind),
            shape: tensor.shape.clone(),
        })?;
        let range = num_bytes(tensor, stored).and_then(|num_bytes| {
            let start = gguf.files[tensor.file].data_start.checked_add(tensor.offset)?;
            let start = usize::try_from(start).ok()?;
            let end = start.checked_add(num_bytes)?;
            (end <= file_len).then_some(start..end)
        });
        let truncated = || WeightsError::Truncated { tensor: tensor.name.clone(), file: file.to_owned() };
        let range = range.ok_or_else(truncated)?;
        let place = TensorPlace { file: tensor.file, stored, shape: tensor.shape.clone(), range };
        Ok((name(&tensor.name, row), place))
    };
    gguf.tensors.iter().map(place).collect()
}

/// Returns the numbers of layers that the metadata has in place of tensors, with their names in a Hugging Face
/// checkpoint and their places in file number `file`, which has them one after another.
pub(super) fn values(gguf: &Gguf, file: usize) -> Vec<(String, f32, TensorPlace)> {
    let architecture = gguf.text("general.architecture").unwrap_or_default();
    let layers = gguf_row(architecture).map_or("", |row| row.layers);
    let mut values = Vec::new();
    for (key, name) in VALUES {
        for (layer, value) in gguf.list(key).unwrap_or_default().iter().enumerate() {
            let GgufValue::Float(value) = value else { continue };
            let start = values.len() * size_of::<f32>();
            let stored = StoredType::Blocks { kind: GgufType::Floats(FloatType::F32), added: 0.0 };
            let place = TensorPlace { file, stored, shape: vec![1], range: start..start + size_of::<f32>() };
            values.push((format!("{layers}{layer}.{name}"), *value as f32, place));
        }
    }
    values
}

/// Returns the divisors of the frequencies of rotary embeddings that the file has.
///
/// # Errors
/// When a file cannot be opened as a checkpoint, or the divisors are quantized.
pub fn rope_factors(gguf: &Gguf) -> Result<RopeFactors, WeightsError> {
    let names = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];
    let has = |name: &str| gguf.tensors.iter().any(|tensor| tensor.name == name);
    if !names.into_iter().any(has) {
        return Ok(RopeFactors::default());
    }
    let checkpoint = super::Checkpoint::of_gguf(gguf)?;
    let read = |name: &str| has(name).then(|| checkpoint.all_floats(name)).transpose();
    let [all, long, short] = names;
    Ok(RopeFactors { all: read(all)?, long: read(long)?, short: read(short)? })
}

/// Returns the name that the tensor `own` has in a Hugging Face checkpoint, or `own` if it is in no table.
fn name(own: &str, row: Option<&GgufRow>) -> String {
    let renamed = |table: &[(&str, &str)], prefix: &str, own: &str| {
        let row = table.iter().find(|(from, _)| own.starts_with(from))?;
        Some(format!("{prefix}{}{}", row.1, &own[row.0.len()..]))
    };
    let (outer, inner, layers) = row.map_or((&[][..], &[][..], ""), |row| (row.outer, row.inner, row.layers));
    let found = match own.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        None => renamed(outer, "", own).or_else(|| renamed(&OUTER, "", own)),
        Some((layer, own)) => {
            let prefix = format!("{layers}{layer}.");
            // Some converters leave out the last part of this name.
            let own = if own == "exp_probs_b" { "exp_probs_b.bias" } else { own };
            let layer_tensor = |own: &str| renamed(inner, &prefix, own).or_else(|| renamed(&INNER, &prefix, own));
            match of_expert(own) {
                Some((all, expert)) => {
                    layer_tensor(&all).map(|name| name.replacen("experts.", &format!("experts.{expert}."), 1))
                }
                None => layer_tensor(own),
            }
        }
    };
    found.unwrap_or_else(|| own.to_owned())
}

/// Returns the name of the tensor of all experts and the index of one, for a tensor of this expert, such as
/// `ffn_up.3.weight`.
fn of_expert(own: &str) -> Option<(String, &str)> {
    let (matrix, rest) = own.split_once('.')?;
    let (expert, kind) = rest.split_once('.')?;
    let is_index = !expert.is_empty() && expert.bytes().all(|byte| byte.is_ascii_digit());
    is_index.then(|| (format!("{matrix}_exps.{kind}"), expert))
}

/// Returns the type of a tensor; `None` if it is not supported, or its rows are not whole blocks.
fn stored_type(tensor: &TensorInfo, added: f32) -> Option<StoredType> {
    let num_columns = if tensor.shape.len() > 1 { tensor.shape.last().copied()? } else { 1 };
    if tensor.kind == MXFP4 {
        return num_columns.is_multiple_of(mxfp4::BLOCK).then_some(StoredType::Mxfp4);
    }
    let kind = GgufType::of(tensor.kind).filter(|kind| num_columns.is_multiple_of(kind.block_len()))?;
    Some(StoredType::Blocks { kind, added })
}

/// Returns the number of bytes of a tensor; `None` if it is too large.
fn num_bytes(tensor: &TensorInfo, stored: StoredType) -> Option<usize> {
    let num_elements = tensor.shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size))?;
    let (block, bytes) = match stored {
        StoredType::Mxfp4 => (mxfp4::BLOCK, 1 + mxfp4::BLOCK / 2),
        StoredType::Blocks { kind, .. } => (kind.block_len(), kind.block_bytes()),
        StoredType::Plain(_) => return None,
    };
    (num_elements / block).checked_mul(bytes)
}

/// The number of MXFP4 in `ggml_type`.
const MXFP4: u32 = 39;

/// Returns a number of `ggml_type` with the name of the type, for an error.
fn number_and_name(number: u32) -> String {
    let other = OTHERS.iter().find(|(other, _)| *other == number).map(|(_, name)| (*name).to_owned());
    match other.or_else(|| GgufType::of(number).map(|kind| kind.to_string())) {
        Some(name) => format!("{name} ({number})"),
        None => format!("number {number}"),
    }
}

impl GgufType {
    /// Returns the type with a number of `ggml_type`; `None` if it is not supported.
    fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Floats(FloatType::F32),
            1 => Self::Floats(FloatType::F16),
            2 => Self::Blocks(BlockType::Q4_0),
            3 => Self::Blocks(BlockType::Q4_1),
            6 => Self::Blocks(BlockType::Q5_0),
            7 => Self::Blocks(BlockType::Q5_1),
            8 => Self::Blocks(BlockType::Q8_0),
            10 => Self::Blocks(BlockType::Q2_K),
            11 => Self::Blocks(BlockType::Q3_K),
            12 => Self::Blocks(BlockType::Q4_K),
            13 => Self::Blocks(BlockType::Q5_K),
            14 => Self::Blocks(BlockType::Q6_K),
            20 => Self::Blocks(BlockType::IQ4_NL),
            23 => Self::Blocks(BlockType::IQ4_XS),
            30 => Self::Floats(FloatType::Bf16),
            _ => return None,
        })
    }

    /// The number of elements of a block; 1 for floats.
    pub(super) fn block_len(self) -> usize {
        match self {
            Self::Floats(_) => 1,
            Self::Blocks(kind) => kind.block_len(),
        }
    }

    /// The number of bytes of a block, or of a float.
    pub(super) fn block_bytes(self) -> usize {
        match self {
            Self::Floats(dtype) => dtype.size_bytes(),
            Self::Blocks(kind) => kind.block_bytes(),
        }
    }
}

impl fmt::Display for GgufType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Floats(dtype) => write!(f, "{dtype}"),
            Self::Blocks(kind) => write!(f, "{kind:?}"),
        }
    }
}
