//! The product of a single bf16 row with vectors instead of tiles, because a single row leaves tiles almost empty and
//! because vectors wait less for memory.
//!
//! Entry point: [`add_products`]. The function sums in the same order as tiles do, so a row has the same bits alone and
//! in a batch. Only a subnormal number, which tiles count as zero, can make a difference.

use crate::isa::{Kernel, LANES, Simd};
use crate::lines::{BLOCK_COLUMNS, Line, RightSide, STEP_LINES, TILE_SIZE};

/// The number of vectors that hold a panel's columns.
const NUM_VECTORS: usize = BLOCK_COLUMNS / LANES;

/// Adds to `sums` the products of `left` `[steps][32 values]` and several `rights` `[steps][2][16 pairs][16 columns]`,
/// interleaved. In each step, the even products are summed in order, and so are the odd ones; then both are added to
/// the sum.
#[inline(always)]
pub(super) fn add_products<S: Simd, const RIGHTS: usize>(
    simd: S,
    left: &[Line],
    rights: [RightSide<'_>; RIGHTS],
    sums: [&mut [f32; BLOCK_COLUMNS]; RIGHTS],
) {
    simd.call(RowProducts { left, rights, sums });
}

struct RowProducts<'a, const RIGHTS: usize> {
    left: &'a [Line],
    rights: [RightSide<'a>; RIGHTS],
    sums: [&'a mut [f32; BLOCK_COLUMNS]; RIGHTS],
}

impl<const RIGHTS: usize> Kernel for RowProducts<'_, RIGHTS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { left, rights, sums } = self;
        let mut vectors = [[simd.splat(0.0); RIGHTS]; NUM_VECTORS];
        for (right, sums) in sums.iter().enumerate() {
            for (vectors, sums) in vectors.iter_mut().zip(sums.as_chunks().0) {
                vectors[right] = simd.load(sums);
            }
        }
        for (step, left) in left.iter().enumerate() {
            let rights = rights.map(|RightSide { lines, ahead }| RightSide {
                lines: &lines[step * STEP_LINES..][..STEP_LINES],
                ahead,
            });
            for (tile, vectors) in vectors.iter_mut().enumerate() {
                let [mut even, mut odd] = [[simd.splat(0.0); RIGHTS]; 2];
                for (idx, word) in left.0.iter().enumerate() {
                    let line = tile * TILE_SIZE + idx;
                    for (RightSide { lines: right, ahead }, (even, odd)) in
                        rights.into_iter().zip(even.iter_mut().zip(&mut odd))
                    {
                        ahead.prefetch(simd, step, line..line + 1);
                        let weights = simd.widen_bf16_pairs(simd.load_words(&right[line].0));
                        *even = simd.mul_add(simd.splat(f32::from_bits(word << 16)), weights[0], *even);
                        *odd = simd.mul_add(simd.splat(f32::from_bits(word & 0xffff_0000)), weights[1], *odd);
                    }
                }
                for (vector, (even, odd)) in vectors.iter_mut().zip(even.into_iter().zip(odd)) {
                    *vector = simd.add(*vector, simd.add(even, odd));
                }
            }
        }
        for (right, sums) in sums.into_iter().enumerate() {
            for (vectors, sums) in vectors.iter().zip(sums.as_chunks_mut().0) {
                simd.store(vectors[right], sums);
            }
        }
    }
}
