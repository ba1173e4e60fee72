//! The formats that floats are rounded to.
//!
//! Doors: [`Rounding`]; [`scale`] for the rules with one scale per row.

use crate::int4;

/// A row whose largest magnitude is less becomes zeros: the inverse of its scale would not be finite.
pub const LEAST_MAGNITUDE: f32 = 1e-30;

/// The numbers that the floats of a matrix are rounded to, and with them those of x: [`int8`](crate::int8) where the
/// matrix has integers, [`fp8`](crate::fp8) where it has floats of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// Integers from -127 to 127, with a scale per output.
    Int8,
    /// Integers of four bits with a factor of a byte per [`int4::GROUP_INPUTS`] inputs, and a scale per output.
    Int4,
    /// Floats of a byte from -448 to 448 (E4M3 of arXiv 2209.05433), with a scale per output.
    Fp8,
}

impl Rounding {
    /// Bytes of the numbers of an output with `num_inputs` inputs, factors included; its scale is an f32 beside them.
    pub fn row_bytes(self, num_inputs: usize) -> usize {
        match self {
            Self::Int8 | Self::Fp8 => num_inputs,
            Self::Int4 => num_inputs.div_ceil(int4::GROUP_INPUTS) * (int4::GROUP_INPUTS / 2 + 1),
        }
    }
}

/// The scale of numbers up to `limit` that stand for `values`, and its inverse, which makes such numbers of the values.
/// The first is infinite or not a number where one of the values is.
#[inline(always)]
pub(crate) fn scale(values: &[f32], limit: f32) -> (f32, f32) {
    // Compared as integers, so that what is not a number is larger than all numbers.
    let largest = values.iter().fold(0, |largest, value| largest.max(value.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(largest);
    if largest < LEAST_MAGNITUDE { (0.0, 0.0) } else { (largest / limit, limit / largest) }
}
