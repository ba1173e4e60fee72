//! Integers of eight bits that stand for floats, by a scale for some of them together.
//!
//! Doors: [`scale`], [`round`], [`round_row`]. They are from -127 to 127, and zero stands for zero.

use crate::rounding;

/// The largest one.
pub const MAX: f32 = 127.0;

/// The scale of integers that stand for `values`, and its inverse. The first is infinite or not a number where one of
/// the values is.
#[inline(always)]
pub fn scale(values: &[f32]) -> (f32, f32) {
    rounding::scale(values, MAX)
}

/// The bits of the nearest integer to `value · inverse`, which is from -127 to 127; of two the even one.
#[inline(always)]
pub fn round(value: f32, inverse: f32) -> u8 {
    // Adding 1.5 * 2^23 rounds to a whole number, whose low bits are the integer's.
    (value * inverse + 12_582_912.0).to_bits() as u8
}

/// Rounds a row to `integers`, as bits, and returns their scale.
pub fn round_row(row: &[f32], integers: &mut [u8]) -> f32 {
    let (scale, inverse) = scale(row);
    integers.iter_mut().zip(row).for_each(|(integer, value)| *integer = round(*value, inverse));
    scale
}
