//! Groups of int4 weights in the form in which the instruction sets multiply them.
//!
//! Entry points: [`Int4Group`], [`GroupOfX`]. `linear::int4` defines the layout of groups in memory.

use super::simd::LANES;
use crate::lines::Line;

/// The number of cache lines of a group. Each line has the weights of eight inputs for sixteen outputs.
pub(crate) const GROUP_LINES: usize = 4;

/// The weights of 32 inputs for the outputs of a tile: `factor · (nibble - 8)`.
#[derive(Clone, Copy)]
pub(crate) struct Int4Group<'a> {
    /// Line i holds inputs 4i to 4i + 3 in the low nibbles of the bytes, and inputs 4i + 16 to 4i + 19 in the high
    /// nibbles.
    pub(crate) lines: &'a [Line; GROUP_LINES],
    /// The factors of the sixteen outputs, a byte each, from -15 to 15.
    pub(crate) factors: &'a [u32; LANES / 4],
}

/// The values of a row of x for the inputs of a group.
#[derive(Clone, Copy)]
pub(crate) struct GroupOfX<'a> {
    /// Integers from -127 to 127, four to a word.
    pub(crate) quads: &'a [u32; 2 * GROUP_LINES],
    /// The result of [`Simd::group_start`] for two values: -8 times the sum of the first and second bytes of all words,
    /// and -8 times the sum of the third and fourth bytes.
    ///
    /// [`Simd::group_start`]: super::simd::Simd::group_start
    pub(crate) start: u32,
}

impl Int4Group<'_> {
    /// Returns the weights of four inputs of one output as integers, `factor · (nibble - 8)`.
    #[inline(always)]
    pub(crate) fn scaled_bytes(&self, quad: usize, column: usize) -> [i8; 4] {
        let nibbles = self.lines[quad % GROUP_LINES].0[column] >> (quad / GROUP_LINES * 4) & 0x0f0f_0f0f;
        let factor = self.factor(column);
        nibbles.to_le_bytes().map(|nibble| (nibble.cast_signed() - 8) * factor)
    }

    /// Returns the factor of one output.
    #[inline(always)]
    pub(crate) fn factor(&self, column: usize) -> i8 {
        ((self.factors[column / 4] >> (column % 4 * 8)) as u8).cast_signed()
    }

    /// Returns `nibble - 8` as bytes: for the low nibbles of line `idx`, then for the high nibbles.
    #[inline(always)]
    pub(crate) fn centred(&self, idx: usize) -> [[u32; LANES]; 2] {
        let words = &self.lines[idx].0;
        let mut centred = [[0; LANES]; 2];
        for i in 0..LANES {
            centred[0][i] = minus_eight(words[i] & 0x0f0f_0f0f);
            centred[1][i] = minus_eight(words[i] >> 4 & 0x0f0f_0f0f);
        }
        centred
    }
}

/// Packs two integers into one word.
#[inline(always)]
pub(crate) fn pair(low: i16, high: i16) -> u32 {
    u32::from(high.cast_unsigned()) << 16 | u32::from(low.cast_unsigned())
}

/// Subtracts 8 from each byte of the word. The bytes must be from 0 to 15. The top bit of a byte is set meanwhile, so
/// that the byte does not borrow from the next one.
#[inline(always)]
fn minus_eight(bytes: u32) -> u32 {
    ((bytes | 0x8080_8080) - 0x0808_0808) ^ 0x8080_8080
}
