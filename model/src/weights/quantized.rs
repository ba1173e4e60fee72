//! Finds the tensors of an encoded matrix, most of which have other names than the tensor that the model requests.
//!
//! Entry point: [`find`]. The checkpoint's [`Quantization`] determines the names, and the shapes of the tensors
//! determine the sizes of groups.

use numbers::mxfp4;
use safetensors::Dtype;

use super::encoding::{Encoded, Integers, Mxfp4, Mxfp4Pages, Packing, Scaled, ScaledType, Words, zeros};
use super::{Checkpoint, StoredType, TensorPlace, WeightsError};
use crate::graph::Quantization;

/// The number of bits of AWQ's integers.
const AWQ_BITS: usize = 4;

/// Returns the matrix `name` if the checkpoint stores it quantized, or `None` if it does not.
pub(super) fn find<'a>(
    checkpoint: &'a Checkpoint,
    name: &str,
    shape: &[usize],
) -> Result<Option<Encoded<'a>>, WeightsError> {
    if checkpoint.quantization == Quantization::Mxfp4 {
        return in_blocks(checkpoint, name, shape);
    }
    let (Some(base), [num_rows, num_columns]) = (name.strip_suffix(".weight"), shape) else {
        return Ok(None);
    };
    let matrix = Matrix { checkpoint, base, num_rows: *num_rows, num_columns: *num_columns };
    match checkpoint.quantization {
        Quantization::None | Quantization::Mxfp4 => Ok(None),
        Quantization::Scaled { block } => matrix.scaled(block),
        Quantization::Gptq { num_bits, zero_offset } => matrix.grouped(Packing::Gptq, num_bits, zero_offset),
        Quantization::Awq => matrix.grouped(Packing::Awq, AWQ_BITS, 0),
        Quantization::Packed { num_bits } => matrix.packed(num_bits),
    }
}

/// Returns the matrices `[experts, in, out]` that are stored as `name_blocks` and `name_scales`, as one matrix
/// `[experts · out, in]`.
fn in_blocks<'a>(checkpoint: &'a Checkpoint, name: &str, shape: &[usize]) -> Result<Option<Encoded<'a>>, WeightsError> {
    let [blocks_name, scales_name] = ["blocks", "scales"].map(|part| format!("{name}_{part}"));
    let (Some(blocks), [num_experts, num_inputs, num_outputs]) = (checkpoint.find(&blocks_name), shape) else {
        return Ok(None);
    };
    let scales = checkpoint.place(&scales_name)?;
    let of_scales = [*num_experts, *num_outputs, num_inputs.div_ceil(mxfp4::BLOCK)];
    let of_blocks = [&of_scales[..], &[mxfp4::BLOCK / 2]].concat();
    for (tensor, place, shape) in [(&blocks_name, blocks, &of_blocks[..]), (&scales_name, scales, &of_scales[..])] {
        if !matches!(place.stored, StoredType::Plain(Dtype::U8 | Dtype::F8_E8M0)) {
            let (tensor, file, found) = (tensor.clone(), checkpoint.file_name(place), place.stored);
            return Err(WeightsError::QuantizedType { tensor, file, found, expected: "U8" });
        }
        checkpoint.check_shape(tensor, place, shape)?;
    }
    let pages = Mxfp4Pages::Apart { blocks: checkpoint.pages(blocks), scales: checkpoint.pages(scales) };
    Ok(Some(Encoded::Mxfp4(Mxfp4 { num_columns: *num_inputs, pages })))
}

/// A matrix that the model requests.
#[derive(Clone, Copy)]
struct Matrix<'a, 'n> {
    checkpoint: &'a Checkpoint,
    /// The name without `.weight`.
    base: &'n str,
    num_rows: usize,
    num_columns: usize,
}

impl<'a> Matrix<'a, '_> {
    /// Returns the matrix that is stored as `weight`, with one byte per element, and `weight_scale_inv` or
    /// `weight_scale`.
    fn scaled(self, block: Option<[usize; 2]>) -> Result<Option<Encoded<'a>>, WeightsError> {
        let (num_rows, num_columns) = (self.num_rows, self.num_columns);
        let Some((name, weight)) = self.find("weight") else { return Ok(None) };
        let stored = match weight.stored {
            StoredType::Plain(Dtype::I8) => ScaledType::Int8,
            StoredType::Plain(Dtype::F8_E4M3) => ScaledType::Float8E4M3,
            StoredType::Plain(Dtype::F8_E5M2) => ScaledType::Float8E5M2,
            StoredType::Plain(_) | StoredType::Blocks { .. } | StoredType::Mxfp4 => return Ok(None),
        };
        self.checkpoint.check_shape(&name, weight, &[num_rows, num_columns])?;
        let (scale_name, scale) = match self.find("weight_scale_inv") {
            Some(found) => found,
            None => self.require("weight_scale")?,
        };
        let blocks = |[rows, columns]: [usize; 2]| vec![num_rows.div_ceil(rows), num_columns.div_ceil(columns)];
        let block = match (scale.shape.as_slice(), block) {
            ([] | [1] | [1, 1], _) => [num_rows, num_columns],
            ([rows] | [rows, 1], _) if *rows == num_rows => [1, num_columns],
            (_, block) => {
                let block = block.unwrap_or([1, num_columns]);
                self.checkpoint.check_shape(&scale_name, scale, &blocks(block))?;
                block
            }
        };
        let (bytes, scales) = (self.checkpoint.pages(weight), self.checkpoint.all_floats(&scale_name)?);
        Ok(Some(Encoded::Scaled(Scaled { num_columns, bytes, stored, block, scales })))
    }

    /// Returns the matrix that is stored as `qweight`, `qzeros`, `scales` and, optionally, `g_idx`.
    fn grouped(self, packing: Packing, num_bits: usize, zero_offset: u32) -> Result<Option<Encoded<'a>>, WeightsError> {
        let Some((name, words)) = self.find("qweight") else { return Ok(None) };
        let per_word = u32::BITS as usize / num_bits;
        let (num_rows, num_columns) = (self.num_rows, self.num_columns);
        let shape = match packing {
            Packing::Awq => [num_columns, num_rows.div_ceil(per_word)],
            Packing::Gptq | Packing::Rows => [num_columns.div_ceil(per_word), num_rows],
        };
        self.check_words(&name, words, &shape)?;
        let (scales_name, scales) = self.require("scales")?;
        let num_groups = scales.shape.first().copied().unwrap_or(1).max(1);
        self.checkpoint.check_shape(&scales_name, scales, &[num_groups, num_rows])?;
        let (zeros_name, zeros_place) = self.require("qzeros")?;
        self.check_words(&zeros_name, zeros_place, &[num_groups, num_rows.div_ceil(per_word)])?;
        let zeros_pages = self.checkpoint.pages(zeros_place);
        let zeros_words = Words { bytes: zeros_pages.bytes(), num_bits };
        let zeros = zeros(zeros_words, packing, [num_groups, num_rows], zero_offset);
        let (scales, groups) = (self.checkpoint.all_floats(&scales_name)?, self.groups("g_idx", num_groups)?);
        let words = self.checkpoint.pages(words);
        Ok(Some(Encoded::Integers(Integers { num_rows, num_columns, packing, num_bits, words, groups, scales, zeros })))
    }

    /// Returns the matrix that is stored as `weight_packed`, `weight_scale` and, optionally, `weight_g_idx`.
    fn packed(self, num_bits: usize) -> Result<Option<Encoded<'a>>, WeightsError> {
        let Some((name, words)) = self.find("weight_packed") else { return Ok(None) };
        let (num_rows, num_columns) = (self.num_rows, self.num_columns);
        self.check_words(&name, words, &[num_rows, num_columns.div_ceil(u32::BITS as usize / num_bits)])?;
        let (scale_name, scale) = self.require("weight_scale")?;
        let num_groups = scale.shape.get(1).copied().unwrap_or(1).max(1);
        self.checkpoint.check_shape(&scale_name, scale, &[num_rows, num_groups])?;
        let by_row = self.checkpoint.all_floats(&scale_name)?;
        let place = |index: usize| by_row[index % num_rows * num_groups + index / num_rows];
        let scales = (0..num_groups * num_rows).map(place).collect();
        let zeros = vec![(1_u32 << (num_bits - 1)) as f32; num_groups * num_rows];
        let groups = self.groups("weight_g_idx", num_groups)?;
        let (packing, words) = (Packing::Rows, self.checkpoint.pages(words));
        Ok(Some(Encoded::Integers(Integers { num_rows, num_columns, packing, num_bits, words, groups, scales, zeros })))
    }

    /// Returns the group of each column, from the tensor `name`. Without that tensor, each group consists of equally
    /// many consecutive columns, except that the last group may be shorter.
    fn groups(self, name: &str, num_groups: usize) -> Result<Vec<u32>, WeightsError> {
        let group_len = self.num_columns.div_ceil(num_groups);
        let Some((name, place)) = self.find(name) else {
            return Ok((0..self.num_columns).map(|column| (column / group_len) as u32).collect());
        };
        self.check_words(&name, place, &[self.num_columns])?;
        let pages = self.checkpoint.pages(place);
        let group = |bytes: &[u8]| {
            let group = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let known = u32::try_from(group).ok().filter(|group| (*group as usize) < num_groups);
            known.ok_or_else(|| {
                let (tensor, file) = (name.clone(), self.checkpoint.file_name(place));
                WeightsError::Group { tensor, file, group: group.into(), num_groups }
            })
        };
        pages.bytes().chunks_exact(size_of::<i32>()).map(group).collect()
    }

    fn find(self, tensor: &str) -> Option<(String, &'a TensorPlace)> {
        let name = format!("{}.{tensor}", self.base);
        let place = self.checkpoint.find(&name)?;
        Some((name, place))
    }

    fn require(self, tensor: &str) -> Result<(String, &'a TensorPlace), WeightsError> {
        let name = format!("{}.{tensor}", self.base);
        let place = self.checkpoint.place(&name)?;
        Ok((name, place))
    }

    fn check_words(self, name: &str, place: &TensorPlace, shape: &[usize]) -> Result<(), WeightsError> {
        if !matches!(place.stored, StoredType::Plain(Dtype::I32 | Dtype::U32)) {
            let (tensor, file, found) = (name.to_owned(), self.checkpoint.file_name(place), place.stored);
            return Err(WeightsError::QuantizedType { tensor, file, found, expected: "I32" });
        }
        self.checkpoint.check_shape(name, place, shape)
    }
}
