//! Int8 values that stand for floats: a value is about its integer times a scale that the values of a row share.
//!
//! Entry points: [`scale`], [`round`], [`round_row`]. The integers are from -127 to 127, and zero stands for zero.

use crate::rounding;

/// The largest integer.
pub const MAX: f32 = 127.0;

/// Returns the scale of integers that stand for `values`, and its inverse. The scale is infinite or NaN if one of the
/// values is.
#[inline(always)]
pub fn scale(values: &[f32]) -> (f32, f32) {
    rounding::scale(values, MAX)
}

/// Returns the bits of the integer nearest to `value · inverse`, which must be from -127 to 127. Ties go to the even
/// integer.
#[inline(always)]
pub fn round(value: f32, inverse: f32) -> u8 {
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
    (value * inverse + 12_582_912.0).to_bits() as u8
}

/// Quantizes a row to `integers`, int8 values as bits, and returns their scale.
pub fn round_row(row: &[f32], integers: &mut [u8]) -> f32 {
    let (scale, inverse) = scale(row);
    integers.iter_mut().zip(row).for_each(|(integer, value)| *integer = round(*value, inverse));
    scale
}
