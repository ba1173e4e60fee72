//! Keys and values as bf16, two in a word, for those types of caches whose numbers are exact in it.
//!
//! Doors: [`Bf16Pairs`], [`Products`].

use half::bf16;

use super::element::KvElement;
use crate::isa::{LANES, Simd, Tiles};
use crate::lines::{Ahead, Block, Line};
use crate::vector_tile;

/// A type of numbers that are exact in bf16.
pub(super) trait Bf16Pairs: KvElement {
    /// Rows as columns of words, each of two neighbours.
    fn transpose<S: Simd>(simd: S, rows: &[&[Self::Stored; 2 * LANES]; LANES], to: &mut [Line; LANES]);
    /// Numbers in the low halves of words, and others in the high ones.
    fn pairs<S: Simd>(simd: S, low: &[Self::Stored; LANES], high: &[Self::Stored; LANES], to: &mut Line);
}

impl Bf16Pairs for bf16 {
    #[inline(always)]
    fn transpose<S: Simd>(simd: S, rows: &[&[u16; 2 * LANES]; LANES], to: &mut [Line; LANES]) {
        simd.transpose_halves(rows, to);
    }

    #[inline(always)]
    fn pairs<S: Simd>(simd: S, low: &[u16; LANES], high: &[u16; LANES], to: &mut Line) {
        simd.pair_halves(low, high, to);
    }
}

impl Bf16Pairs for i8 {
    #[inline(always)]
    fn transpose<S: Simd>(simd: S, rows: &[&[Self; 2 * LANES]; LANES], to: &mut [Line; LANES]) {
        let mut lines = [Line([0; LANES]); LANES];
        for (line, row) in lines.iter_mut().zip(rows) {
            let mut widened = [0.0; 2 * LANES];
            for (to, numbers) in widened.as_chunks_mut().0.iter_mut().zip(row.as_chunks().0) {
                simd.store(simd.widen_i8(numbers), to);
            }
            simd.round_to_bf16(&widened, line);
        }
        simd.transpose(&lines, to);
    }

    #[inline(always)]
    fn pairs<S: Simd>(simd: S, low: &[Self; LANES], high: &[Self; LANES], to: &mut Line) {
        let mut widened = [[0.0; LANES]; 2];
        simd.store(simd.widen_i8(low), &mut widened[0]);
        simd.store(simd.widen_i8(high), &mut widened[1]);
        for (i, word) in to.0.iter_mut().enumerate() {
            *word = widened[1][i].to_bits() & 0xffff_0000 | widened[0][i].to_bits() >> 16;
        }
    }
}

/// How blocks are multiplied.
#[derive(Clone, Copy)]
pub(super) struct Products<'a> {
    /// Vectors multiply where there are none.
    pub(super) tiles: Option<&'a Tiles>,
    /// Rows of each block on the left.
    pub(super) block_rows: usize,
}

impl Products<'_> {
    /// Adds to `sums` `[rows, 32]` the products of `left` `[steps][rows][16 words]` and `right` `[steps][2][16 words][16 columns]`.
    #[inline(always)]
    pub(super) fn add<S: Simd>(self, simd: S, left: &[Line], right: &[Line], sums: &mut Block<f32>) {
        let ahead = Ahead::nothing(right);
        match self.tiles {
            Some(tiles) => tiles.add_bf16_product(left, right, ahead, sums),
            None => {
                vector_tile::add_product(simd, vector_tile::Bf16Pairs, (left, self.block_rows), (right, ahead), sums)
            }
        }
    }
}
