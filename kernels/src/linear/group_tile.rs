//! Products with int4 weights: a few rows times the 32 outputs of a panel, group by group.
//!
//! Entry points: [`add_product`], [`add_products_of_row`]. Sums of integers are exact, so every instruction set returns
//! the same bits.

use super::int4::{self, INT4_STEP_LINES, PANEL_TILES, STEP_GROUPS};
use crate::isa::{GroupOfX, Kernel, LANES, Simd};
use crate::lines::{Block, Line, RightSide};
use crate::vector_tile;

/// Rows of x, quantized to int8.
#[derive(Clone, Copy)]
pub(super) struct GroupedRows<'a> {
    /// `[steps][rows]`
    pub(super) lines: &'a [Line],
    /// The start values of the sums of each group, `[steps][rows]`.
    pub(super) starts: &'a [[u32; STEP_GROUPS]],
    pub(super) num_rows: usize,
}

/// Returns how many times the lines of weights are read for `num_rows` rows.
#[inline(always)]
pub(super) fn num_sweeps<S: Simd>(num_rows: usize) -> usize {
    vector_tile::num_sweeps(num_rows, rows_together::<S>)
}

/// The number of rows, at most `num_rows`, that are multiplied together.
#[inline(always)]
fn rows_together<S: Simd>(num_rows: usize) -> usize {
    match num_rows {
        8.. if S::NUM_SUMS >= 16 => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// Adds to `sums` `[rows, 32]` the products of `rows` and `right` `[steps]`. Each sweep over `right` prefetches its
/// share of `right.ahead`.
#[inline(always)]
pub(super) fn add_product<S: Simd>(simd: S, rows: GroupedRows<'_>, right: RightSide<'_>, sums: &mut Block<i32>) {
    simd.call(Product { rows, right, sums });
}

/// Adds to `sums` the products of a single row and several `rights`, interleaved, as `vector_tile` does.
#[inline(always)]
pub(super) fn add_products_of_row<S: Simd, const RIGHTS: usize>(
    simd: S,
    row: GroupedRows<'_>,
    rights: [RightSide<'_>; RIGHTS],
    sums: [&mut Block<i32>; RIGHTS],
) {
    simd.call(RowProducts { row, rights, sums });
}

/// The product of the rows of a block and one right-hand side.
struct Product<'a> {
    rows: GroupedRows<'a>,
    right: RightSide<'a>,
    sums: &'a mut Block<i32>,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { rows, right, sums } = self;
        let num_steps = right.lines.len() / INT4_STEP_LINES;
        let shares = right.ahead.shares(num_sweeps::<S>(rows.num_rows), num_steps);
        let mut row = 0;
        for ahead in shares {
            let right = RightSide { ahead, ..right };
            row += match rows_together::<S>(rows.num_rows - row) {
                8 => add_rows::<S, 8, 1>(simd, (rows, row), [right], [sums]),
                4 => add_rows::<S, 4, 1>(simd, (rows, row), [right], [sums]),
                2 => add_rows::<S, 2, 1>(simd, (rows, row), [right], [sums]),
                _ => add_rows::<S, 1, 1>(simd, (rows, row), [right], [sums]),
            };
        }
    }
}

/// The products of a single row and several right-hand sides.
struct RowProducts<'a, const RIGHTS: usize> {
    row: GroupedRows<'a>,
    rights: [RightSide<'a>; RIGHTS],
    sums: [&'a mut Block<i32>; RIGHTS],
}

impl<const RIGHTS: usize> Kernel for RowProducts<'_, RIGHTS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        add_rows::<S, 1, RIGHTS>(simd, (self.row, 0), self.rights, self.sums);
    }
}

#[inline(always)]
fn add_rows<S: Simd, const ROWS: usize, const RIGHTS: usize>(
    simd: S,
    (rows, first_row): (GroupedRows<'_>, usize),
    rights: [RightSide<'_>; RIGHTS],
    sums: [&mut Block<i32>; RIGHTS],
) -> usize {
    // Loops over sums have constant bounds, as in `vector_tile`.
    let mut sums = sums.map(|sums| sums.0[first_row..].first_chunk_mut::<ROWS>().expect("a block has these rows"));
    let mut vectors = [[[simd.load_integers(&[0; LANES]); ROWS]; PANEL_TILES]; RIGHTS];
    for (vectors, sums) in vectors.iter_mut().zip(&sums) {
        for (tile, vectors) in vectors.iter_mut().enumerate() {
            for (vector, sums) in vectors.iter_mut().zip(sums.iter()) {
                *vector = simd.load_integers(&sums.as_chunks().0[tile]);
            }
        }
    }
    let lines = rows.lines.chunks_exact(rows.num_rows).zip(rows.starts.chunks_exact(rows.num_rows));
    for (step, (lines, starts)) in lines.enumerate() {
        let (lines, starts) = (&lines[first_row..][..ROWS], &starts[first_row..][..ROWS]);
        let rights = rights.map(|RightSide { lines, ahead }| RightSide {
            lines: &lines[step * INT4_STEP_LINES..][..INT4_STEP_LINES],
            ahead,
        });
        for group in 0..STEP_GROUPS {
            if S::HAS_LONE_COLUMNS && ROWS > 1 {
                // Prefetch the rows of the next step, as in `vector_tile`.
                for idx in group * ROWS / STEP_GROUPS..(group + 1) * ROWS / STEP_GROUPS {
                    simd.prefetch(lines.as_ptr().wrapping_add(rows.num_rows + idx));
                }
            }
            let mut x = [GroupOfX { quads: &lines[0].0.as_chunks().0[group], start: starts[0][group] }; ROWS];
            for (x, (line, starts)) in x.iter_mut().zip(lines.iter().zip(starts)) {
                *x = GroupOfX { quads: &line.0.as_chunks().0[group], start: starts[group] };
            }
            for tile in 0..PANEL_TILES {
                for (vectors, RightSide { lines: right, ahead }) in vectors.iter_mut().zip(rights) {
                    // Prefetch a few lines at a time, because the processor can have only a few cache misses
                    // outstanding.
                    let piece_lines = ahead.lines_per_step.div_ceil(STEP_GROUPS * PANEL_TILES);
                    let first = (group * PANEL_TILES + tile) * piece_lines;
                    ahead.prefetch(simd, step, first..first + piece_lines);
                    simd.add_group(&mut vectors[tile], int4::group(right, group, tile), &x);
                }
            }
        }
    }
    for (vectors, sums) in vectors.into_iter().zip(&mut sums) {
        for (tile, vectors) in vectors.into_iter().enumerate() {
            for (vector, sums) in vectors.into_iter().zip(sums.iter_mut()) {
                simd.store_integers(vector, &mut sums.as_chunks_mut().0[tile]);
            }
        }
    }
    ROWS
}
