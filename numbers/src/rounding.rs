//! The formats to which floats are quantized.
//!
//! Entry points: [`Rounding`]; [`scale`], for the rules with one scale per row.

use crate::int4;

/// The smallest magnitude that a row needs in order to be quantized. If all values of a row are smaller, the row
/// becomes zeros, because the inverse of its scale could be infinite.
pub const LEAST_MAGNITUDE: f32 = 1e-30;

/// The format to which a weight is quantized. The inputs that the weight is multiplied with are quantized too: to
/// [`int8`](crate::int8) for `Int8` and `Int4`, to [`fp8`](crate::fp8) for `Fp8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// Int8 values from -127 to 127, with a scale per output.
    Int8,
    /// Int4 values, with a factor of one byte per [`int4::GROUP_INPUTS`] inputs and a scale per output.
    Int4,
    /// Fp8 floats from -448 to 448 (E4M3 of arXiv 2209.05433), with a scale per output.
    Fp8,
}

impl Rounding {
    /// Returns the number of bytes of the weights of an output with `num_inputs` inputs, factors included. The output's
    /// scale, an f32, is stored separately.
    pub fn row_bytes(self, num_inputs: usize) -> usize {
        match self {
            Self::Int8 | Self::Fp8 => num_inputs,
            Self::Int4 => num_inputs.div_ceil(int4::GROUP_INPUTS) * (int4::GROUP_INPUTS / 2 + 1),
        }
    }
}

/// Returns the scale with which numbers up to `limit` stand for `values`, and its inverse. A value times the inverse is
/// rounded. The scale is infinite or NaN if one of the values is, and both are 0 if all magnitudes are below
/// [`LEAST_MAGNITUDE`].
#[inline(always)]
pub(crate) fn scale(values: &[f32], limit: f32) -> (f32, f32) {
    // The bits are compared as integers, in which NaN is larger than all numbers.
    let largest = values.iter().fold(0, |largest, value| largest.max(value.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(largest);
    if largest < LEAST_MAGNITUDE { (0.0, 0.0) } else { (largest / limit, limit / largest) }
}
