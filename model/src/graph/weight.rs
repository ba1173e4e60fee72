//! Tensors of the checkpoint, and which part of each a rank has.
//!
//! Doors: [`WeightSpec`], and [`Source`] for weights that are not stored as they are used. A graph is the same for all ranks: a spec says how large a part is, and where it lies only when it
//! is asked for a rank. Sizes that the ranks do not divide are rounded up, and the last parts end in zeros.

use numbers::{FloatType, Rounding};

/// A weight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightSpec {
    /// Its name: no other weight of the model has it.
    pub name: String,
    /// Its whole shape.
    pub shape: Vec<usize>,
    /// Type it is converted to while loading.
    pub dtype: FloatType,
    /// How ranks share it.
    pub partition: Partition,
    /// How many ranks share it.
    pub world_size: usize,
    /// How many ranks, one after the other, have the same part; divides `world_size`.
    pub num_copies: usize,
    /// What it is in the checkpoint.
    pub source: Source,
    /// What stands for its floats where it is used; they themselves where there is nothing.
    pub rounding: Option<Rounding>,
}

/// What a weight is in the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// The tensor of its name.
    Whole,
    /// Some rows of a tensor.
    Section { tensor: String, section: Section },
    /// A tensor whose two dimensions stand the other way round, or some of its columns.
    Transposed { tensor: String, section: Option<Section> },
    /// Tensors of one shape, one behind the other along a new first dimension.
    Stack(Vec<String>),
}

/// How config.json says that matrices are stored in the checkpoint. A tensor of floats is read as such under any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quantization {
    /// As floats.
    #[default]
    None,
    /// Numbers of a byte with a scale for each block of so many rows and columns; for each row or matrix where none is given.
    Scaled { block: Option<[usize; 2]> },
    /// Integers, as GPTQ stores them; zeros are stored smaller by `zero_offset`.
    Gptq { num_bits: usize, zero_offset: u32 },
    /// Integers of four bits, as AWQ stores them.
    Awq,
    /// Integers around zero, as compressed-tensors packs them.
    Packed { num_bits: usize },
}

/// Rows of a tensor that is made of groups of `group_rows` rows: in each group the same, `first` the first of them. How many
/// follows from the shape of the weight that they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Section {
    pub(crate) num_groups: usize,
    pub(crate) group_rows: usize,
    pub(crate) first: usize,
}

/// How the ranks of a model share a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Partition {
    /// Each rank has all of it.
    Replicated,
    /// Each rank has some outputs of a linear layer.
    Column,
    /// Each rank has some inputs of a linear layer; the ranks' results are summed.
    Row,
    /// Each rank has some tokens of the vocabulary.
    Vocab,
}

/// What one rank has of a stored tensor: `len` of the indices of one dimension, all of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightPart {
    /// The dimension that is cut.
    pub dim: usize,
    /// First index in the stored tensor.
    pub start: usize,
    /// Indices that come from the stored tensor.
    pub len: usize,
    /// Indices behind them, which are zero.
    pub padding: usize,
}

impl Section {
    /// Where the row number `row` is in the tensor, with `len` rows in each group.
    pub(crate) fn row(&self, row: usize, len: usize) -> usize {
        row / len * self.group_rows + self.first + row % len
    }
}

impl WeightSpec {
    /// The dimension that ranks split, if they do.
    fn split_dim(&self) -> Option<usize> {
        match self.partition {
            Partition::Replicated => None,
            Partition::Column | Partition::Vocab => Some(0),
            Partition::Row => Some(1),
        }
    }

    /// What `rank` has.
    pub fn part(&self, rank: usize) -> WeightPart {
        let Some(dim) = self.split_dim() else {
            return WeightPart { dim: 0, start: 0, len: self.shape.first().copied().unwrap_or(1), padding: 0 };
        };
        let local = self.local_shape()[dim];
        let start = (rank / self.num_copies * local).min(self.shape[dim]);
        let len = local.min(self.shape[dim] - start);
        WeightPart { dim, start, len, padding: local - len }
    }

    /// The tensors of the checkpoint that it is read from.
    pub(crate) fn tensors(&self) -> &[String] {
        match &self.source {
            Source::Whole => std::slice::from_ref(&self.name),
            Source::Section { tensor, .. } | Source::Transposed { tensor, .. } => std::slice::from_ref(tensor),
            Source::Stack(tensors) => tensors,
        }
    }

    /// Shape of each of these.
    pub(crate) fn stored_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        match &self.source {
            Source::Whole => {}
            Source::Section { section, .. } => shape[0] = section.num_groups * section.group_rows,
            Source::Transposed { section, .. } => {
                shape[0] = section.map_or(shape[0], |section| section.num_groups * section.group_rows);
                shape.reverse();
            }
            Source::Stack(_) => _ = shape.remove(0),
        }
        shape
    }

    /// Bytes of the part that one rank has, scales included.
    pub fn local_bytes(&self) -> u64 {
        let shape = self.local_shape();
        let (row_len, rows) = shape.split_last().map_or((1, 1), |(len, rows)| (*len, rows.iter().product::<usize>()));
        let row_bytes = match self.rounding {
            None => row_len * self.dtype.size_bytes(),
            Some(rounding) => rounding.row_bytes(row_len) + FloatType::F32.size_bytes(),
        };
        (rows * row_bytes) as u64
    }

    /// Shape of the part that one rank has, padding included: the same for all ranks.
    pub fn local_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(dim) = self.split_dim() {
            shape[dim] = shape[dim].div_ceil(self.world_size / self.num_copies);
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(shape: &[usize], partition: Partition, world_size: usize, num_copies: usize) -> WeightSpec {
        WeightSpec {
            name: "w".to_owned(),
            shape: shape.to_vec(),
            dtype: FloatType::F32,
            partition,
            world_size,
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
        (0..spec.world_size).map(range).collect()
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
