//! The numbers of a tensor, which a float type stores exactly.
//!
//! Element `i` of a tensor is `base + scale * x`, where x is a sum of four uniform numbers: the top bits of the four
//! words that [`philox`](crate::philox) has for counter `i`, around zero, so -2 < x < 2 and the standard deviation is
//! 0.58. The key is the start of the SHA-256 of the checkpoint's seed, a space and the tensor's name.

use half::{bf16, f16};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::philox;

/// A type of floats.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    /// The number of bits of each of the four numbers that are added. Sums, also those with a base, fit into the type.
    fn bits(self) -> u32 {
        match self {
            Self::F32 => 20,
            Self::F16 => 8,
            Self::Bf16 => 5,
        }
    }

    /// Returns the bytes of numbers in this type.
    ///
    /// # Errors
    ///
    /// When the type has no such number.
    pub(crate) fn bytes_of(self, numbers: &[f64]) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        for &number in numbers {
            let (stored, stored_bytes) = match self {
                Self::F32 => (f64::from(number as f32), (number as f32).to_le_bytes().to_vec()),
                Self::F16 => (f16::from_f64(number).to_f64(), f16::from_f64(number).to_le_bytes().to_vec()),
                Self::Bf16 => (bf16::from_f64(number).to_f64(), bf16::from_f64(number).to_le_bytes().to_vec()),
            };
            if stored != number {
                return Err(format!("{number} is not exact in {self:?}"));
            }
            bytes.extend(stored_bytes);
        }
        Ok(bytes)
    }
}

/// A tensor of a derived checkpoint: its name, type, shape, base and scale, and the first 8 hexadecimal digits of the
/// SHA-256 of its bytes.
#[derive(Deserialize)]
pub(crate) struct Tensor(
    pub(crate) String,
    pub(crate) Float,
    pub(crate) Vec<usize>,
    pub(crate) f64,
    pub(crate) f64,
    pub(crate) String,
);

impl Tensor {
    /// Returns the numbers in the order of the rows.
    pub(crate) fn numbers(&self, seed: &str) -> Vec<f64> {
        let Self(name, float, shape, base, scale, _) = self;
        let digest = Sha256::digest(format!("{seed} {name}"));
        let word = |start: usize| u32::from_le_bytes(std::array::from_fn(|byte| digest[start + byte]));
        let (key, bits) = ([word(0), word(4)], float.bits());
        let (middle, unit) = (2.0 * (f64::from(1_u32 << bits) - 1.0), scale / f64::from(1_u32 << bits));
        let number = |element: usize| {
            let counter = u32::try_from(element).expect("tensors of tests are small");
            let sum: u32 = philox::words([counter, 0, 0, 0], key).iter().map(|word| word >> (32 - bits)).sum();
            base + (f64::from(sum) - middle) * unit
        };
        (0..shape.iter().product()).map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(float: Float, base: f64, scale: f64) -> Tensor {
        Tensor("model.norm.weight".to_owned(), float, vec![40, 50], base, scale, String::new())
    }

    #[test]
    fn numbers_have_the_stated_range_and_spread() {
        for float in [Float::F32, Float::F16, Float::Bf16] {
            let numbers = tensor(float, 1.0, 0.25).numbers("test 7");
            assert!(numbers.iter().all(|number| (number - 1.0).abs() < 0.5), "{float:?}");
            let mean = numbers.iter().sum::<f64>() / 2000.0;
            let deviation = (numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / 2000.0).sqrt();
            assert!(
                (mean - 1.0).abs() < 0.02 && (deviation / 0.25 - 0.577).abs() < 0.03,
                "{float:?}: {mean} {deviation}"
            );
        }
    }

    #[test]
    fn another_seed_or_name_has_other_numbers() {
        let numbers = tensor(Float::Bf16, 0.0, 1.0).numbers("test 7");
        assert_ne!(numbers, tensor(Float::Bf16, 0.0, 1.0).numbers("test 8"));
        let mut renamed = tensor(Float::Bf16, 0.0, 1.0);
        renamed.0.push('s');
        assert_ne!(numbers, renamed.numbers("test 7"));
    }

    #[test]
    fn numbers_that_would_be_rounded_are_refused() {
        assert_eq!(Float::F32.bytes_of(&[1.0, -2.0]).unwrap(), [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
        assert_eq!(Float::Bf16.bytes_of(&[1.0, 1.0 + 1.0 / 512.0]).unwrap_err(), "1.001953125 is not exact in Bf16");
    }
}
