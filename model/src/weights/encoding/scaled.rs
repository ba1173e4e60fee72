//! Elements of one byte (int8 or fp8), with a scale for each block of the matrix.
//!
//! Entry point: [`Scaled`]. The value of an element is the stored number times the scale of its block, even if the
//! scale's tensor is called `weight_scale_inv`. The forms are fp8 of DeepSeek and Qwen (`weight` and `weight_scale_inv`
//! of blocks), fp8 of FBGEMM and compressed-tensors (`weight_scale` of rows, or of the whole matrix), and int8 of
//! compressed-tensors. The 8-bit floats are E4M3 and E5M2 of OCP's *8-bit Floating Point Specification*.

use std::ops::Range;

use half::f16;
use numbers::fp8;

use crate::weights::pages::Pages;

/// The type of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::weights) enum ScaledType {
    Int8,
    Float8E4M3,
    Float8E5M2,
}

/// A matrix of bytes, and scales `[rows / block rows, columns / block columns]`, with both quotients rounded up.
#[derive(Debug)]
pub(in crate::weights) struct Scaled<'a> {
    pub(in crate::weights) num_columns: usize,
    pub(in crate::weights) bytes: Pages<'a>,
    pub(in crate::weights) stored: ScaledType,
    /// The numbers of rows and columns of a block.
    pub(in crate::weights) block: [usize; 2],
    pub(in crate::weights) scales: Vec<f32>,
}

impl ScaledType {
    /// Returns the number that `byte` encodes.
    fn number(self, byte: u8) -> f32 {
        match self {
            Self::Int8 => f32::from(byte.cast_signed()),
            Self::Float8E5M2 => f16::from_bits(u16::from(byte) << 8).to_f32(),
            Self::Float8E4M3 => fp8::number(byte),
        }
    }
}

impl Scaled<'_> {
    pub(super) fn read(&self, rows: Range<usize>, floats: &mut Vec<f32>) {
        let numbers: [f32; 256] = std::array::from_fn(|byte| self.stored.number(byte as u8));
        let [block_rows, block_columns] = self.block;
        let num_scales = self.num_columns.div_ceil(block_columns);
        for row in rows {
            let bytes = &self.bytes.bytes()[row * self.num_columns..][..self.num_columns];
            let scales = &self.scales[row / block_rows * num_scales..][..num_scales];
            for (bytes, scale) in bytes.chunks(block_columns).zip(scales) {
                floats.extend(bytes.iter().map(|byte| numbers[usize::from(*byte)] * scale));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_numbers_of_the_specification() {
        let number = |byte| ScaledType::Float8E5M2.number(byte);
        assert_eq!(
            [0x7b, 0x04, 0x03, 0x01].map(number),
            [57344.0, 2.0_f32.powi(-14), 0.75 * 2.0_f32.powi(-14), 2.0_f32.powi(-16)]
        );
        assert!(number(0x7c).is_infinite() && number(0x7d).is_nan());
        assert_eq!(ScaledType::Int8.number(0x80), -128.0);
    }
}
