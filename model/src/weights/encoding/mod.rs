//! Matrices that are not stored as floats: numbers of a byte or less, and scales beside them.
//!
//! Door: [`Encoded`], whose rows come out as f32. Which form a matrix is in follows from `quantization_config` of config.json
//! and from the tensors that are there; each form has a file that says what those are called. What its activations would be
//! rounded to is not of interest here: only weights are read.

mod blocks;
mod integers;
mod scaled;

use std::ops::Range;

pub(super) use blocks::Blocks;
pub(super) use integers::{Integers, Packing, Words, zeros};
pub(super) use scaled::{Scaled, ScaledType};

/// A matrix `[rows, columns]`.
#[derive(Debug)]
pub(super) enum Encoded<'a> {
    Scaled(Scaled<'a>),
    Integers(Integers<'a>),
    Blocks(Blocks<'a>),
}

impl Encoded<'_> {
    /// Length of a row.
    pub(super) fn num_columns(&self) -> usize {
        match self {
            Self::Scaled(matrix) => matrix.num_columns,
            Self::Integers(matrix) => matrix.num_columns,
            Self::Blocks(matrix) => matrix.num_columns,
        }
    }

    /// Appends rows to `floats`.
    pub(in crate::weights) fn read(&self, rows: Range<usize>, floats: &mut Vec<f32>) {
        match self {
            Self::Scaled(matrix) => matrix.read(rows, floats),
            Self::Integers(matrix) => matrix.read(rows, floats),
            Self::Blocks(matrix) => matrix.read(rows, floats),
        }
    }
}
