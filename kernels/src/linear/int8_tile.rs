//! Products of int8 blocks without tiles: a few rows times the 32 outputs of a panel, summed in registers.
//!
//! Door: [`add_product`]. Sums of integers are exact, so every instruction set answers the same bits.

use crate::isa::{LANES, Simd};
use crate::lines::{BLOCK_COLUMNS, Block, Line, STEP_LINES, TILE_SIZE};

/// Vectors that hold a block's columns.
const NUM_VECTORS: usize = BLOCK_COLUMNS / LANES;

/// Adds to `sums` `[rows, 32]` the products of `left` `[steps][rows][64 values]` and `right` `[steps][2][16 quads][16 columns]`; values are
/// from -127 to 127.
#[inline(always)]
pub(super) fn add_product<S: Simd>(simd: S, left: &[Line], num_rows: usize, right: &[Line], sums: &mut Block<i32>) {
    let mut row = 0;
    while row < num_rows {
        let lines = Rows { left, num_rows, row };
        row += match num_rows - row {
            4.. if S::NUM_SUMS >= 8 => add_rows::<S, 4>(simd, lines, right, sums),
            2.. if S::NUM_SUMS >= 4 => add_rows::<S, 2>(simd, lines, right, sums),
            _ => add_rows::<S, 1>(simd, lines, right, sums),
        };
    }
}

/// Rows of a block, from one on.
#[derive(Clone, Copy)]
struct Rows<'a> {
    left: &'a [Line],
    num_rows: usize,
    row: usize,
}

#[inline(always)]
fn add_rows<S: Simd, const ROWS: usize>(simd: S, rows: Rows<'_>, right: &[Line], sums: &mut Block<i32>) -> usize {
    let sums = &mut sums.0[rows.row..rows.row + ROWS];
    let mut vectors = [[simd.load_integers(&[0; LANES]); NUM_VECTORS]; ROWS];
    for (vectors, sums) in vectors.iter_mut().zip(&*sums) {
        for (vector, sums) in vectors.iter_mut().zip(sums.as_chunks().0) {
            *vector = simd.load_integers(sums);
        }
    }
    for (left, right) in rows.left.chunks_exact(rows.num_rows).zip(right.chunks_exact(STEP_LINES)) {
        let left = &left[rows.row..rows.row + ROWS];
        let (first, second) = right.split_at(TILE_SIZE);
        for quad in 0..TILE_SIZE {
            for (row, vectors) in vectors.iter_mut().enumerate() {
                let word = left[row].0[quad];
                vectors[0] = simd.add_dots(vectors[0], &first[quad].0, word);
                vectors[1] = simd.add_dots(vectors[1], &second[quad].0, word);
            }
        }
    }
    for (vectors, sums) in vectors.into_iter().zip(sums) {
        for (vector, sums) in vectors.into_iter().zip(sums.as_chunks_mut().0) {
            simd.store_integers(vector, sums);
        }
    }
    ROWS
}
