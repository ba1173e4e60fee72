//! Fp8 floats (E4M3): a sign, four bits of exponent and three of mantissa, without infinities (arXiv 2209.05433, and
//! OCP's *8-bit Floating Point Specification*).
//!
//! Entry points: [`round_row`] and [`round`]; [`number`], which converts back to f32.

use crate::rounding;

/// The largest float.
pub const MAX: f32 = 448.0;

/// Quantizes a row to fp8 floats from -448 to 448, and returns their scale: a value is about its float times the scale.
pub fn round_row(row: &[f32], floats: &mut [u8]) -> f32 {
    let (scale, inverse) = rounding::scale(row, MAX);
    floats.iter_mut().zip(row).for_each(|(float, value)| *float = round(value * inverse));
    scale
}

/// Returns the fp8 float nearest to `value`. If two are equally near, the even one is returned. A magnitude above
/// [`MAX`] becomes [`MAX`] and keeps its sign. NaN stays NaN.
pub fn round(value: f32) -> u8 {
    const NAN: u8 = 0x7f;
    /// The number of mantissa bits that are cut off: f32 has 23, fp8 has 3.
    const CUT_BITS: u32 = 20;
    /// The difference of the exponents' biases, shifted to where an fp8 float has its exponent.
    const EXPONENT: u32 = (127 - 7) << 3;
    let sign = (value.to_bits() >> 31 << 7) as u8;
    let magnitude = value.abs();
    let bits = if magnitude.is_nan() {
        NAN
    } else if magnitude < 1.0 / 64.0 {
        // The result is subnormal, a multiple of 2^-9, or else 8 · 2^-9, the smallest normal float.
        (magnitude * 512.0).round_ties_even() as u8
    } else {
        let bits = magnitude.min(MAX).to_bits();
        let half = (1 << (CUT_BITS - 1)) - 1 + (bits >> CUT_BITS & 1);
        (((bits + half) >> CUT_BITS) - EXPONENT) as u8
    };
    sign | bits
}

/// Returns the value of the fp8 float with the bits `byte`.
pub fn number(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2.0_f32.powi(-9),
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    #[test]
    fn bytes_are_the_numbers_of_the_specification() {
        // The largest number, the smallest normal one, the largest and the smallest subnormal ones, and zero: table 2
        // of the specification.
        assert_eq!([0x7e, 0x08, 0x07, 0x01, 0x00].map(number), [448.0, 0.015625, 0.013671875, 0.001953125, 0.0]);
        assert_eq!((number(0xb8), number(0x38), number(0x3c)), (-1.0, 1.0, 1.5));
        assert!(number(0x7f).is_nan() && number(0xff).is_nan());
    }

    /// The expected values are those of candle's own conversion.
    #[test]
    fn floats_of_a_byte_are_the_nearest() {
        let of_byte = |bits: u8| -> f32 {
            let byte = Tensor::from_raw_buffer(&[bits], candle_core::DType::F8E4M3, &[], &Device::Cpu).unwrap();
            byte.to_dtype(candle_core::DType::F32).unwrap().to_scalar().unwrap()
        };
        let neighbours = (0..0x7e_u8).flat_map(|bits| {
            let [low, high] = [of_byte(bits), of_byte(bits + 1)];
            let middle = f32::midpoint(low, high);
            let [below, above] = [middle.next_down(), middle.next_up()];
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            [(low, bits), (below, bits), (middle, even), (above, bits + 1)]
        });
        for (value, expected) in neighbours.chain([(448.0, 0x7e), (1e9, 0x7e), (f32::INFINITY, 0x7e)]) {
            assert_eq!(round(value), expected, "{value}");
            assert_eq!(round(-value), expected | 0x80, "-{value}");
        }
        assert_eq!(round(f32::NAN) & 0x7f, 0x7f);
    }
}
