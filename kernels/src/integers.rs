//! Integers of eight bits that stand for floats, by a factor for some of them together.
//!
//! Doors: [`int8_scale`], [`int8`]. They are from -127 to 127, and zero stands for zero.

/// What integers that stand for `values` are multiplied with, and what values are multiplied with to become integers. The first is
/// infinite or not a number where one of the values is.
#[inline(always)]
pub(crate) fn int8_scale(values: &[f32]) -> (f32, f32) {
    // Compared as integers, so that what is not a number is larger than all numbers.
    let largest = values.iter().fold(0, |largest, value| largest.max(value.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(largest);
    // The inverse of less would not be finite.
    if largest < 1e-30 { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) }
}

/// The nearest integer to `value · inverse`, which is from -127 to 127.
#[inline(always)]
pub(crate) fn int8(value: f32, inverse: f32) -> u8 {
    // Adding 1.5 * 2^23 rounds to a whole number, whose low bits are the integer's.
    (value * inverse + 12_582_912.0).to_bits() as u8
}
