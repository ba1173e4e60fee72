//! MXFP4: blocks of floats of 4 bits (E2M1) that share a scale of 8 bits (E8M0), as in OCP's *Microscaling Formats (MX)
//! Specification*.
//!
//! Entry points: [`round_block`]; [`number`] and [`scale`], which convert back to f32. A float has a sign, two bits of
//! exponent and one of mantissa. A scale is a power of two, stored as its exponent plus 127; 255 is NaN.

/// The number of floats of a block.
pub const BLOCK: usize = 32;
/// The numbers without sign, by their lower three bits.
const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// The stored scale that is NaN.
const NAN: u8 = 0xff;
/// The number of mantissa bits of an f32.
const MANTISSA_BITS: u32 = 23;

/// Returns the bytes of `num_floats` floats and their scales, as weights in memory: a scale takes two bytes there.
pub fn num_bytes(num_floats: usize) -> usize {
    num_floats / 2 + num_floats.div_ceil(BLOCK) * 2
}

/// Returns the number that the lower four bits of `bits` encode.
pub fn number(bits: u8) -> f32 {
    let magnitude = MAGNITUDES[usize::from(bits & 7)];
    if bits & 8 == 0 { magnitude } else { -magnitude }
}

/// Returns the scale that `stored` encodes.
#[inline(always)]
pub fn scale(stored: u8) -> f32 {
    match stored {
        // The smallest scale is half of the smallest normal number.
        0 => f32::MIN_POSITIVE / 2.0,
        NAN => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << MANTISSA_BITS),
    }
}

/// Returns the stored scale of a block, and the floats nearest to its values; the even one of two that are equally
/// near. The largest magnitude decides the scale: it becomes 4 or 6. Values that are a scale times such floats are
/// exact. If `values` are fewer than a block has, the missing ones count as 0. The scale is NaN if a value is infinite
/// or NaN.
#[inline(always)]
pub fn round_block(values: &[f32]) -> (u8, [u8; BLOCK]) {
    let mut block = [0.0_f32; BLOCK];
    block[..values.len()].copy_from_slice(values);
    let mut largest = 0;
    for value in block {
        largest = largest.max(value.abs().to_bits());
    }
    let stored = match (largest >> MANTISSA_BITS) as u8 {
        u8::MAX => NAN,
        exponent => exponent.saturating_sub(2),
    };
    // The inverse of the scale.
    let inverse = scale(254 - stored.min(254));
    let mut floats = [0; BLOCK];
    for (float, value) in floats.iter_mut().zip(block) {
        let magnitude = value.abs() * inverse;
        let mut index = 0;
        for middle in [0.25, 1.25, 2.5, 5.0] {
            index += u8::from(magnitude > middle);
        }
        for middle in [0.75, 1.75, 3.5] {
            index += u8::from(magnitude >= middle);
        }
        *float = index | u8::from(value.is_sign_negative()) << 3;
    }
    (stored, floats)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[f32]) -> Vec<f32> {
        let (stored, floats) = round_block(values);
        floats.iter().take(values.len()).map(|float| number(*float) * scale(stored)).collect()
    }

    #[test]
    fn all_numbers_are_those_of_the_specification() {
        let all = std::array::from_fn::<f32, 16, _>(|bits| number(bits as u8));
        let expected = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        assert_eq!(all[..8], expected);
        assert_eq!(all[8..], expected.map(|number| -number));
        assert!(all[8].is_sign_negative());
    }

    #[test]
    fn scales_are_powers_of_two() {
        let powers = [-127, -126, -1, 0, 1, 127].map(|power| 2.0_f64.powi(power) as f32);
        assert_eq!([0, 1, 126, 127, 128, 254].map(scale), powers);
        assert!(scale(255).is_nan());
    }

    #[test]
    fn values_are_rounded_to_the_nearest_and_ties_to_even() {
        let values = [6.0, 0.24, 0.25, 0.26, 0.74, 0.75, 1.25, 1.26, -1.75, 2.5, 3.4, 3.5, -5.0, 5.1, 7.9];
        let expected = [6.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.5, -2.0, 2.0, 3.0, 4.0, -4.0, 6.0, 6.0];
        assert_eq!(read(&values), expected);
        let scaled = |factor: f32| read(&values.map(|value| value * factor));
        assert_eq!(scaled(1.0 / 1024.0), expected.map(|number| number / 1024.0));
        assert_eq!(scaled(2.0_f32.powi(120)), expected.map(|number| number * 2.0_f32.powi(120)));
    }

    /// Every block that the format can store is read back as it is, whatever its own scale was.
    #[test]
    fn floats_of_the_format_are_exact() {
        for stored in [2_u8, 3, 100, 127, 200, 251, 252] {
            for largest in 1..8_u8 {
                let values: Vec<f32> =
                    (0..=largest).flat_map(|bits| [number(bits), -number(bits)].map(|n| n * scale(stored))).collect();
                assert_eq!(read(&values), values, "{stored} {largest}");
            }
        }
        assert_eq!(read(&[0.0, -0.0]), [0.0, 0.0]);
    }

    #[test]
    fn a_block_with_nan_or_infinity_has_the_scale_nan() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(round_block(&[1.0, bad, 2.0]).0, NAN);
        }
    }
}
