//! Products of several rows with weights of few bits, on vectors, a group of inputs at a time.
//!
//! Entry point: [`add_product`], which multiplies unpacked steps. Sums are added in the same order whatever the number
//! of rows: the products of a group's levels and x, in the order of inputs, then the scale times their sum, then the
//! least number times the sum of x. So weights are never rounded. x is bf16 if the instruction set multiplies pairs of
//! bf16, otherwise f32.

use std::sync::atomic::{Ordering, compiler_fence};

use super::blocks::BlockOfX;
use super::narrow::Narrow;
use super::unpacked::{self, PAIRS, TILES, floats, num_parts, unpacked_lines};
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
    simd.call_for_floats(Product { from, x, num_rows, right, sums });
}

/// The product of the rows of a block and one right-hand side.
struct Product<'a> {
    from: Narrow,
    x: BlockOfX<'a>,
    num_rows: usize,
    right: RightSide<'a>,
    sums: &'a mut Block<f32>,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let num_steps = self.right.lines.len() / unpacked_lines::<S>();
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

impl Product<'_> {
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
        let (RightSide { lines, ahead }, num_parts) = (self.right, num_parts::<S>());
        let (num_scales, takes_sums) = (self.from.num_scales(), self.from.takes_sums(S::HAS_PAIRS));
        let sums = self.sums.0[first_row..].first_chunk_mut::<ROWS>().expect("a block has these rows");
        for (step, right) in unpacked::steps(simd, lines).enumerate() {
            let first = step * self.num_rows + first_row;
            let left = &self.x.lines[first * num_parts..][..ROWS * num_parts];
            let levels = right.levels;
            for half in 0..num_scales {
                let mut dots = [[simd.splat(0.0); COUNT]; ROWS];
                for pair in half * PAIRS / num_scales..(half + 1) * PAIRS / num_scales {
                    if first_tile == 0 {
                        // Prefetch two lines at a time, as `vector_tile` does.
                        ahead.prefetch(simd, step, 2 * pair..2 * pair + 2);
                    }
                    for part in 0..num_parts {
                        let line = (first_tile * PAIRS + pair) * num_parts + part;
                        // One of the two is used.
                        let mut words = [simd.load_words(&levels[line].0); COUNT];
                        let mut numbers = [floats(simd, &levels[line]); COUNT];
                        for tile in 0..COUNT {
                            let line = &levels[line + tile * PAIRS * num_parts];
                            (words[tile], numbers[tile]) = (simd.load_words(&line.0), floats(simd, line));
                        }
                        for (row, dots) in dots.iter_mut().enumerate() {
                            // The fence makes the compiler read each word when it is used, because all words at once
                            // would take registers from the sums.
                            compiler_fence(Ordering::SeqCst);
                            let word = left[row * num_parts + part].0[pair];
                            for (tile, dot) in dots.iter_mut().enumerate() {
                                *dot = if S::HAS_PAIRS {
                                    simd.add_bf16_dots(*dot, words[tile], word)
                                } else {
                                    simd.mul_add(numbers[tile], simd.splat(f32::from_bits(word)), *dot)
                                };
                            }
                        }
                    }
                }
                let x_sums = if takes_sums { &self.x.sums[first..][..ROWS] } else { &[[0.0; 2]; ROWS] };
                for tile in 0..COUNT {
                    let (scale, least) = right.scales(simd, first_tile + tile, half);
                    for ((sums, dots), x) in sums.iter_mut().zip(&dots).zip(x_sums) {
                        let to = &mut sums.as_chunks_mut().0[first_tile + tile];
                        let mut sum = simd.mul_add(dots[tile], scale, simd.load(to));
                        if takes_sums {
                            sum = simd.mul_add(simd.splat(x[half]), least, sum);
                        }
                        simd.store(sum, to);
                    }
                }
            }
        }
    }
}
