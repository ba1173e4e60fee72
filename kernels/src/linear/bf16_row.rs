//! The product of one row of bf16 without tiles, which a single row leaves almost empty: vectors wait less for memory.
//!
//! Door: [`add_product`]. It adds in the order in which tiles do, so a row has the same bits alone and among others.

use crate::isa::{LANES, Simd};
use crate::lines::{Ahead, BLOCK_COLUMNS, Line, STEP_LINES, TILE_SIZE};

/// Adds to `sums` the product of `left` `[steps][32 values]` and `right` `[steps][2][16 pairs][16 columns]`: of each step the even
/// products are summed in order, and the odd ones; both are added to the sum.
#[inline(always)]
pub(super) fn add_product<S: Simd>(
    simd: S,
    left: &[Line],
    (right, ahead): (&[Line], Ahead),
    sums: &mut [f32; BLOCK_COLUMNS],
) {
    let mut vectors = [simd.splat(0.0); BLOCK_COLUMNS / LANES];
    for (vector, sums) in vectors.iter_mut().zip(sums.as_chunks().0) {
        *vector = simd.load(sums);
    }
    for (step, (left, right)) in left.iter().zip(right.chunks_exact(STEP_LINES)).enumerate() {
        for (tile, (vector, right)) in vectors.iter_mut().zip(right.chunks_exact(TILE_SIZE)).enumerate() {
            let [mut even, mut odd] = [simd.splat(0.0); 2];
            for (idx, (word, line)) in left.0.iter().zip(right).enumerate() {
                let piece = tile * TILE_SIZE + idx;
                ahead.prefetch(simd, step, piece..piece + 1);
                let weights = simd.widen_bf16_pairs(simd.load_words(&line.0));
                even = simd.mul_add(simd.splat(f32::from_bits(word << 16)), weights[0], even);
                odd = simd.mul_add(simd.splat(f32::from_bits(word & 0xffff_0000)), weights[1], odd);
            }
            *vector = simd.add(*vector, simd.add(even, odd));
        }
    }
    for (vector, sums) in vectors.into_iter().zip(sums.as_chunks_mut().0) {
        simd.store(vector, sums);
    }
}
