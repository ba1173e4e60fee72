//! Products of several rows with weights of few bits, on vectors, a group of inputs at a time.
//!
//! Entry point: [`add_product`], which multiplies unpacked steps. Whatever the number of rows, the order of additions
//! is the same. First the products of a group's levels and x are added up. Then the output receives their sum,
//! multiplied by the scale, and the sum of x, multiplied by the minimum. So weights are never rounded. `blocks`
//! rounds x.

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, compiler_fence};

use super::blocks::{BlockOfX, GroupNumbers};
use super::level_sums::{Bf16Pairs, Floats, Integers, LevelSums};
use super::narrow::Narrow;
use super::unpacked::{self, PAIRS, TILES, UNPACKED_LINES};
use crate::isa::{Kernel, Simd};
use crate::lines::{Block, RightSide};
use crate::vector_tile::{num_sweeps, rows_together};

/// Adds to `sums` `[rows, 32]` the products of `num_rows` rows of x and the unpacked steps `right`. Each sweep over
/// `right` prefetches its share of `right.ahead`.
#[inline(always)]
pub(super) fn add_product<S: Simd>(
    simd: S,
    from: Narrow,
    (x, num_rows): (BlockOfX<'_>, usize),
    right: RightSide<'_>,
    sums: &mut Block<f32>,
) {
    if S::HAS_PAIRS {
        simd.call(Product { from, x, num_rows, right, sums, by: PhantomData::<Bf16Pairs> });
    } else if S::HAS_VECTORS {
        simd.call(Product { from, x, num_rows, right, sums, by: PhantomData::<Integers> });
    } else {
        simd.call(Product { from, x, num_rows, right, sums, by: PhantomData::<Floats> });
    }
}

/// The product of the rows of a block and one right-hand side.
struct Product<'a, D> {
    from: Narrow,
    x: BlockOfX<'a>,
    num_rows: usize,
    right: RightSide<'a>,
    sums: &'a mut Block<f32>,
    by: PhantomData<D>,
}

impl<D: LevelSums> Kernel for Product<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let num_steps = self.right.lines.len() / UNPACKED_LINES;
        let shares = self.right.ahead.shares(num_sweeps(self.num_rows, rows_together::<S>), num_steps);
        let mut row = 0;
        for ahead in shares {
            self.right.ahead = ahead;
            row += match rows_together::<S>(self.num_rows - row) {
                12 => self.add_rows::<S, 12>(simd, row),
                8 => self.add_rows::<S, 8>(simd, row),
                6 => self.add_rows::<S, 6>(simd, row),
                4 => self.add_rows::<S, 4>(simd, row),
                3 => self.add_rows::<S, 3>(simd, row),
                2 => self.add_rows::<S, 2>(simd, row),
                _ => self.add_rows::<S, 1>(simd, row),
            };
        }
    }
}

impl<D: LevelSums> Product<'_, D> {
    /// Adds the products of `ROWS` rows from `row` on. Returns `ROWS`.
    #[inline(always)]
    fn add_rows<S: Simd, const ROWS: usize>(&mut self, simd: S, row: usize) -> usize {
        if S::HAS_LONE_COLUMNS {
            for tile in 0..TILES {
                self.add_tiles::<S, ROWS, 1>(simd, (row, tile));
            }
        } else {
            self.add_tiles::<S, ROWS, { TILES }>(simd, (row, 0));
        }
        ROWS
    }

    /// Adds the products of `ROWS` rows and the outputs of `COUNT` tiles.
    #[inline(always)]
    fn add_tiles<S: Simd, const ROWS: usize, const COUNT: usize>(
        &mut self,
        simd: S,
        (first_row, first_tile): (usize, usize),
    ) {
        let RightSide { lines, ahead } = self.right;
        let sums = self.sums.0[first_row..].first_chunk_mut::<ROWS>().expect("a block has these rows");
        for (step, right) in unpacked::steps(lines).enumerate() {
            let first = step * self.num_rows + first_row;
            let left = self.x.lines[first..].first_chunk::<ROWS>().expect("a block has these rows");
            let numbers =
                self.x.groups.get(first..).and_then(<[_]>::first_chunk).unwrap_or(&[GroupNumbers::NONE; ROWS]);
            for half in 0..self.from.num_scales() {
                let mut dots = [[D::start(simd, self.from, &numbers[0], half); COUNT]; ROWS];
                for (dots, x) in dots.iter_mut().zip(numbers) {
                    *dots = [D::start(simd, self.from, x, half); COUNT];
                }
                for pair in half * PAIRS / self.from.num_scales()..(half + 1) * PAIRS / self.from.num_scales() {
                    if first_tile == 0 {
                        // Prefetch two lines at a time, as `vector_tile` does.
                        ahead.prefetch(simd, step, 2 * pair..2 * pair + 2);
                    }
                    let line = first_tile * PAIRS + pair;
                    let mut levels = [simd.load_words(&right.levels[line].0); COUNT];
                    for (tile, levels) in levels.iter_mut().enumerate() {
                        *levels = simd.load_words(&right.levels[line + tile * PAIRS].0);
                    }
                    for (dots, left) in dots.iter_mut().zip(left) {
                        // The fence makes the compiler read each word when it is used, because all words at once would
                        // take registers from the sums.
                        compiler_fence(Ordering::SeqCst);
                        for (dot, levels) in dots.iter_mut().zip(levels) {
                            *dot = D::add(simd, *dot, levels, std::slice::from_ref(left), pair);
                        }
                    }
                }
                for tile in 0..COUNT {
                    let (scale, least) = right.scales(simd, first_tile + tile, half);
                    for ((sums, dots), x) in sums.iter_mut().zip(&dots).zip(numbers) {
                        let to = &mut sums.as_chunks_mut().0[first_tile + tile];
                        let scale = D::scale(simd, scale, x);
                        let mut sum = simd.mul_add(D::dots(simd, dots[tile]), scale, simd.load(to));
                        if self.from.has_least() {
                            sum = simd.mul_add(simd.splat(x.sum(half)), least, sum);
                        }
                        simd.store(sum, to);
                    }
                }
            }
        }
    }
}
