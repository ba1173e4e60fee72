//! Descriptions of weights, and the part of each weight that a rank has.
//!
//! Entry points: [`WeightSpec`], and [`Source`] for weights that are not stored as they are used. A graph is the same
//! for all ranks, because the shape of a part, padding included, does not depend on the rank; only its content does,
//! see [`WeightSpec::part`]. Sizes that the ranks do not divide are rounded up, and the last parts are padded with
//! zeros.

use numbers::{FloatType, Rounding};

/// The description of a weight: its shape, type and source, and how ranks share it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightSpec {
    /// The name, unique in the model.
    pub name: String,
    /// The shape of the whole weight.
    pub shape: Vec<usize>,
    /// The type to which the weight is converted while loading, unless it is quantized.
    pub dtype: FloatType,
    /// The way in which ranks share the weight.
    pub partition: Partition,
    /// The number of ranks that share the weight.
    pub num_ranks: usize,
    /// The number of consecutive ranks that have the same part. It divides `num_ranks`.
    pub num_copies: usize,
    /// The tensors of the checkpoint from which the weight is read.
    pub source: Source,
    /// The type to which the weight is quantized; `None` if it keeps the type `dtype`.
    pub rounding: Option<Rounding>,
}

/// The form in which the checkpoint stores a weight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// The tensor with the weight's name.
    Whole,
    /// Some rows of a tensor.
    Section { tensor: String, section: Section },
    /// A matrix that the checkpoint stores with its two dimensions swapped, or some columns of such a matrix.
    Transposed { tensor: String, section: Option<Section> },
    /// Tensors of one shape, stacked along a new first dimension.
    Stack(Vec<String>),
    /// Some rows of the matrix of each head, as they are stored or transposed. All heads' matrices are one tensor.
    Heads { tensor: String, section: Section, is_transposed: bool },
    /// Some columns of the matrices `[in, out]`, or of the vectors `[out]`, of all experts, which are one tensor
    /// `[experts, in, out]` or `[experts, out]`. The weight's matrices are `[out, in]`.
    Columns { tensor: String, columns: Stride },
}

/// The storage of matrices in the checkpoint, according to config.json. A tensor of floats is read as floats in any
/// case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quantization {
    /// As floats, or in the blocks of a GGUF file.
    #[default]
    None,
    /// Elements of one byte (int8 or fp8), with a scale for each block of `[rows, columns]`. Without `block`, there is
    /// a scale for each row or for the whole matrix.
    Scaled { block: Option<[usize; 2]> },
    /// Integers, as GPTQ stores them. Each stored zero point is `zero_offset` less than the actual zero point.
    Gptq { num_bits: usize, zero_offset: u32 },
    /// Integers of 4 bits, as AWQ stores them.
    Awq,
    /// The matrices of experts as floats of 4 bits with a scale for each block of 32, as OpenAI publishes gpt-oss.
    Mxfp4,
    /// Packed signed integers, as compressed-tensors stores them.
    Packed { num_bits: usize },
}

/// Some rows of a tensor that consists of `num_groups` groups of `group_rows` rows. The section has the same rows of
/// each group, beginning with the group's row `first`. The shape of the weight gives the number of rows per group.
///
/// If the weight is a stack of matrices, each group has one row of it, which is a whole matrix: the tensor is
/// `[num_groups, group_rows · out, in]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Section {
    pub(crate) num_groups: usize,
    pub(crate) group_rows: usize,
    pub(crate) first: usize,
}

/// Every `step`-th column from the column `first` on. The matrices have `parts` times as many columns as the stride.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stride {
    pub first: usize,
    pub step: usize,
    pub parts: usize,
}

/// The way in which the ranks of a model share a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Partition {
    /// Each rank has the whole weight.
    Replicated,
    /// Each rank has some indices of the first dimension: outputs of a linear layer, heads of a norm, or experts.
    Column,
    /// Each rank has some inputs of a linear layer, and the ranks' results are summed.
    Row,
    /// Each rank has some tokens of the vocabulary, or some positions.
    Vocab,
}

/// The part of a weight that one rank has: `len` indices of one dimension, and all indices of the other dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightPart {
    /// The dimension that ranks split; 0 if every rank has the whole weight.
    pub dim: usize,
    /// The first index of the part in that dimension of the weight.
    pub start: usize,
    /// The number of indices that are read from the checkpoint.
    pub len: usize,
    /// The number of indices after them, which are zero.
    pub padding: usize,
}

impl Section {
    /// Returns the row of the tensor that is row `row` of the section, which has `len` rows of each group.
    pub(crate) fn row(&self, row: usize, len: usize) -> usize {
        row / len * self.group_rows + self.first + row % len
    }
}

impl WeightSpec {
    /// Returns the dimension that ranks split; `None` if every rank has the whole weight.
    fn split_dim(&self) -> Option<usize> {
        match self.partition {
            Partition::Replicated => None,
            Partition::Column | Partition::Vocab => Some(0),
            Partition::Row => Some(1),
        }
    }

    /// Returns the part that `rank` has.
    pub fn part(&self, rank: usize) -> WeightPart {
        let Some(dim) = self.split_dim() else {
            return WeightPart { dim: 0, start: 0, len: self.shape.first().copied().unwrap_or(1), padding: 0 };
        };
        let local = self.local_shape()[dim];
        let start = (rank / self.num_copies * local).min(self.shape[dim]);
        let len = local.min(self.shape[dim] - start);
        WeightPart { dim, start, len, padding: local - len }
    }

    /// The names of the tensors from which the weight is read, as in a checkpoint that is not quantized.
    pub(crate) fn tensors(&self) -> &[String] {
        match &self.source {
            Source::Whole => std::slice::from_ref(&self.name),
            Source::Section { tensor, .. }
            | Source::Transposed { tensor, .. }
            | Source::Heads { tensor, .. }
            | Source::Columns { tensor, .. } => std::slice::from_ref(tensor),
            Source::Stack(tensors) => tensors,
        }
    }

    /// Returns the shape that each of [`tensors`](Self::tensors) has in a checkpoint that is not quantized.
    pub(crate) fn stored_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        match &self.source {
            Source::Whole => {}
            Source::Section { section, .. } if shape.len() == 3 => shape[1] *= section.group_rows,
            Source::Section { section, .. } => shape[0] = section.num_groups * section.group_rows,
            Source::Transposed { section, .. } => {
                shape[0] = section.map_or(shape[0], |section| section.num_groups * section.group_rows);
                shape.reverse();
            }
            Source::Heads { section, is_transposed, .. } => {
                let columns = if *is_transposed { shape[1] } else { shape[2] };
                shape = vec![section.num_groups * section.group_rows, columns];
            }
            Source::Stack(_) => _ = shape.remove(0),
            Source::Columns { columns, .. } => {
                shape[1] *= columns.parts;
                shape[1..].reverse();
            }
        }
        shape
    }

    /// Returns the bytes of the part that one rank has, scales included.
    pub fn local_bytes(&self) -> u64 {
        let shape = self.local_shape();
        let (row_len, rows) = shape.split_last().map_or((1, 1), |(len, rows)| (*len, rows.iter().product::<usize>()));
        let row_bytes = match self.rounding {
            None => row_len * self.dtype.size_bytes(),
            Some(rounding) => rounding.row_bytes(row_len) + FloatType::F32.size_bytes(),
        };
        (rows * row_bytes) as u64
    }

    /// Returns the shape of the part that one rank has, padding included. It is the same for all ranks.
    pub fn local_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(dim) = self.split_dim() {
            shape[dim] = shape[dim].div_ceil(self.num_ranks / self.num_copies);
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(shape: &[usize], partition: Partition, num_ranks: usize, num_copies: usize) -> WeightSpec {
        WeightSpec {
            name: "w".to_owned(),
            shape: shape.to_vec(),
            dtype: FloatType::F32,
            partition,
            num_ranks,
            num_copies,
            source: Source::Whole,
            rounding: None,
        }
    }

    fn ranges(spec: &WeightSpec) -> Vec<(usize, usize, usize)> {
        let range = |rank| {
            let WeightPart { dim: _, start, len, padding } = spec.part(rank);
            (start, len, padding)
        };
        (0..spec.num_ranks).map(range).collect()
    }

    #[test]
    fn parts_that_do_not_divide_end_in_padding() {
        let odd = spec(&[257, 8], Partition::Vocab, 4, 1);
        assert_eq!(odd.local_shape(), [65, 8]);
        assert_eq!(ranges(&odd), [(0, 65, 0), (65, 65, 0), (130, 65, 0), (195, 62, 3)]);
        let tiny = spec(&[8, 5], Partition::Row, 4, 1);
        assert_eq!((tiny.local_shape(), tiny.part(3).dim), (vec![8, 2], 1));
        assert_eq!(ranges(&tiny), [(0, 2, 0), (2, 2, 0), (4, 1, 1), (5, 0, 2)]);
    }

    #[test]
    fn neighbours_have_the_same_copy() {
        let heads = spec(&[2 * 16, 8], Partition::Column, 8, 4);
        assert_eq!(heads.local_shape(), [16, 8]);
        let starts: Vec<usize> = ranges(&heads).into_iter().map(|(start, _, _)| start).collect();
        assert_eq!(starts, [0, 0, 0, 0, 16, 16, 16, 16]);
    }

    #[test]
    fn replicas_are_whole() {
        let norm = spec(&[7], Partition::Replicated, 4, 1);
        assert_eq!((norm.local_shape(), norm.local_bytes()), (vec![7], 28));
        assert_eq!(ranges(&norm), [(0, 7, 0); 4]);
    }

    #[test]
    fn rounded_floats_have_scales() {
        let floats = WeightSpec { dtype: FloatType::Bf16, ..spec(&[3, 10, 64], Partition::Column, 2, 1) };
        let int8 = WeightSpec { rounding: Some(Rounding::Int8), ..floats.clone() };
        let int4 = WeightSpec { rounding: Some(Rounding::Int4), ..floats.clone() };
        let ragged = WeightSpec { shape: vec![3, 10, 65], ..int4.clone() };
        let sizes = [&floats, &int8, &int4, &ragged].map(WeightSpec::local_bytes);
        let (elements, scales) = (2 * 10 * 64, 2 * 10 * 4);
        let small = elements / 2 + elements / 32 + scales;
        assert_eq!(sizes, [2 * elements, elements + scales, small, small + 2 * 10 * 17]);
    }
}
