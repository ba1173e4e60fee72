//! Matrices that are not stored as plain floats. Most are stored as elements of at most one byte, with scales.
//!
//! Entry point: [`Encoded`], whose rows are read as f32. The form of a matrix follows from `quantization_config` of
//! config.json and the names and types of its tensors; in a GGUF file, from the type of its tensor. The file of each
//! form describes its tensors.

mod blocks;
mod integers;
mod mxfp4;
mod scaled;

use std::ops::Range;

pub(super) use blocks::Blocks;
pub(super) use integers::{Integers, Packing, Words, zeros};
pub(super) use mxfp4::{Mxfp4, Mxfp4Pages};
pub(super) use scaled::{Scaled, ScaledType};

/// A matrix `[rows, columns]`, encoded in one of four forms.
#[derive(Debug)]
pub(super) enum Encoded<'a> {
    Scaled(Scaled<'a>),
    Integers(Integers<'a>),
    Blocks(Blocks<'a>),
    Mxfp4(Mxfp4<'a>),
}

impl Encoded<'_> {
    /// Returns the length of a row, in elements.
    pub(super) fn num_columns(&self) -> usize {
        match self {
            Self::Scaled(matrix) => matrix.num_columns,
            Self::Integers(matrix) => matrix.num_columns,
            Self::Blocks(matrix) => matrix.num_columns,
            Self::Mxfp4(matrix) => matrix.num_columns,
        }
    }

    /// Appends rows to `floats`.
    pub(in crate::weights) fn read(&self, rows: Range<usize>, floats: &mut Vec<f32>) {
        match self {
            Self::Scaled(matrix) => matrix.read(rows, floats),
            Self::Integers(matrix) => matrix.read(rows, floats),
            Self::Blocks(matrix) => matrix.read(rows, floats),
            Self::Mxfp4(matrix) => matrix.read(rows, floats),
        }
    }
}
