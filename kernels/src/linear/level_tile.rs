//! Products with weights of few bits: a few rows times the 32 outputs of a panel, a group of inputs at a time.
//!
//! Entry points: [`add_product`], which multiplies what [`unpack`] returns, and [`add_products_of_row`], which unpacks
//! in registers. Both add in the same order, whatever the number of rows: the products of a group's levels and x, pair
//! by pair, then the scale times their sum, then the least number times the sum of x. So weights are never rounded.

use std::sync::atomic::{Ordering, compiler_fence};

use numbers::blocks::BlockType;

use super::blocks::BlockOfX;
use super::narrow::{Narrow, Steps};
use crate::isa::{Kernel, LANES, Simd};
use crate::lines::{BLOCK_COLUMNS, Block, Line, RightSide, STEP_LINES, TILE_SIZE};
use crate::vector_tile::{num_sweeps, rows_together};

/// The number of tiles of a panel.
const TILES: usize = BLOCK_COLUMNS / LANES;
/// The number of pairs of inputs of a step.
const PAIRS: usize = TILE_SIZE;
/// The number of lines of scales in an unpacked step: `[2 tiles][2 halves][scales, least numbers]`.
const SCALE_LINES: usize = TILES * 4;
/// The number of lines of an unpacked step: the scales, then the pairs of levels `[2 tiles][16 pairs][16 outputs]`.
const UNPACKED_LINES: usize = SCALE_LINES + STEP_LINES;

/// The sums of a row for the outputs of a panel.
type Sums = [f32; BLOCK_COLUMNS];

/// Unpacks steps to scales and pairs of bf16 in `scratch`.
#[inline(always)]
pub(super) fn unpack<S: Simd>(simd: S, from: Narrow, steps: Steps<'_>, scratch: &mut Vec<Line>) {
    scratch.resize(steps.lines.len() / from.step_lines() * UNPACKED_LINES, Line([0; LANES]));
    simd.call(Unpack { from, steps, to: scratch });
}

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
    simd.call(Product { from, x, num_rows, right, sums });
}

/// Adds to `sums` the products of a single row and several panels, interleaved. `rights` are whole panels, heads
/// included.
#[inline(always)]
pub(super) fn add_products_of_row<S: Simd, const RIGHTS: usize>(
    simd: S,
    from: Narrow,
    x: BlockOfX<'_>,
    rights: [RightSide<'_>; RIGHTS],
    sums: [&mut Sums; RIGHTS],
) {
    simd.call(RowProducts { from, x, rights, sums });
}

/// Work on weights of one format.
trait OfFormat {
    /// Does the work. `from` is a constant for the compiler, which removes the code for other formats.
    fn run<S: Simd>(self, simd: S, from: Narrow);
}

/// Runs `work` with `from` as a constant.
#[inline(always)]
fn of_format<S: Simd>(simd: S, from: Narrow, work: impl OfFormat) {
    match from {
        Narrow::Mxfp4 => work.run(simd, Narrow::Mxfp4),
        Narrow::Blocks(BlockType::Q2_K) => work.run(simd, Narrow::Blocks(BlockType::Q2_K)),
        Narrow::Blocks(BlockType::Q3_K) => work.run(simd, Narrow::Blocks(BlockType::Q3_K)),
        Narrow::Blocks(BlockType::Q4_0) => work.run(simd, Narrow::Blocks(BlockType::Q4_0)),
        Narrow::Blocks(BlockType::Q4_1) => work.run(simd, Narrow::Blocks(BlockType::Q4_1)),
        Narrow::Blocks(BlockType::Q4_K) => work.run(simd, Narrow::Blocks(BlockType::Q4_K)),
        Narrow::Blocks(BlockType::Q5_0) => work.run(simd, Narrow::Blocks(BlockType::Q5_0)),
        Narrow::Blocks(BlockType::Q5_1) => work.run(simd, Narrow::Blocks(BlockType::Q5_1)),
        Narrow::Blocks(BlockType::Q5_K) => work.run(simd, Narrow::Blocks(BlockType::Q5_K)),
        Narrow::Blocks(BlockType::Q6_K) => work.run(simd, Narrow::Blocks(BlockType::Q6_K)),
        Narrow::Blocks(BlockType::Q8_0) => work.run(simd, Narrow::Blocks(BlockType::Q8_0)),
    }
}

struct Unpack<'a> {
    from: Narrow,
    steps: Steps<'a>,
    to: &'a mut [Line],
}

impl Kernel for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        of_format(simd, self.from, self);
    }
}

impl OfFormat for Unpack<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, from: Narrow) {
        let Self { steps: Steps { heads, first, lines }, to, .. } = self;
        let unpacked = lines.chunks_exact(from.step_lines()).zip(to.chunks_exact_mut(UNPACKED_LINES));
        for (idx, (step, to)) in unpacked.enumerate() {
            let (numbers, pairs) = to.split_at_mut(SCALE_LINES);
            for tile in 0..TILES {
                let (scales, levels) = from.scales(simd, (heads, first + idx), step, tile);
                let numbers = &mut numbers[4 * tile..][..4];
                for (half, (scale, least)) in scales.into_iter().enumerate() {
                    set_floats(simd, scale, &mut numbers[2 * half]);
                    set_floats(simd, least, &mut numbers[2 * half + 1]);
                }
                for (pair, to) in pairs[tile * PAIRS..][..PAIRS].iter_mut().enumerate() {
                    simd.store_words(from.pairs(simd, (levels, tile), pair), &mut to.0);
                }
            }
        }
    }
}

#[inline(always)]
fn set_floats<S: Simd>(simd: S, vector: S::Vector, line: &mut Line) {
    let mut floats = [0.0; LANES];
    simd.store(vector, &mut floats);
    line.0 = floats.map(f32::to_bits);
}

#[inline(always)]
fn floats<S: Simd>(simd: S, line: &Line) -> S::Vector {
    simd.load(&line.0.map(f32::from_bits))
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
    fn run<S: Simd>(self, simd: S) {
        match (self.from.num_scales(), self.from.has_least()) {
            (1, false) => self.sweep::<S, 1, false>(simd),
            (1, true) => self.sweep::<S, 1, true>(simd),
            (_, false) => self.sweep::<S, 2, false>(simd),
            (_, true) => self.sweep::<S, 2, true>(simd),
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn sweep<S: Simd, const SCALES: usize, const HAS_LEAST: bool>(mut self, simd: S) {
        let num_steps = self.right.lines.len() / UNPACKED_LINES;
        let shares = self.right.ahead.shares(num_sweeps(self.num_rows, rows_together::<S>), num_steps);
        let mut row = 0;
        for ahead in shares {
            self.right.ahead = ahead;
            row += match rows_together::<S>(self.num_rows - row) {
                12 => self.add_rows::<S, SCALES, HAS_LEAST, 12>(simd, row),
                8 => self.add_rows::<S, SCALES, HAS_LEAST, 8>(simd, row),
                4 => self.add_rows::<S, SCALES, HAS_LEAST, 4>(simd, row),
                2 => self.add_rows::<S, SCALES, HAS_LEAST, 2>(simd, row),
                _ => self.add_rows::<S, SCALES, HAS_LEAST, 1>(simd, row),
            };
        }
    }

    /// Adds the products of `ROWS` rows from `first_row` on. Returns `ROWS`.
    #[inline(always)]
    fn add_rows<S: Simd, const SCALES: usize, const HAS_LEAST: bool, const ROWS: usize>(
        &mut self,
        simd: S,
        first_row: usize,
    ) -> usize {
        let RightSide { lines, ahead } = self.right;
        let sums = self.sums.0[first_row..].first_chunk_mut::<ROWS>().expect("a block has these rows");
        for (step, right) in lines.chunks_exact(UNPACKED_LINES).enumerate() {
            let first = step * self.num_rows + first_row;
            let left = self.x.lines[first..].first_chunk::<ROWS>().expect("x has these rows");
            let (numbers, pairs) = right.split_at(SCALE_LINES);
            for part in 0..SCALES {
                let mut dots = [[simd.splat(0.0); TILES]; ROWS];
                for pair in part * PAIRS / SCALES..(part + 1) * PAIRS / SCALES {
                    // Prefetch two lines at a time, as `vector_tile` does.
                    ahead.prefetch(simd, step, 2 * pair..2 * pair + 2);
                    let levels = [simd.load_words(&pairs[pair].0), simd.load_words(&pairs[PAIRS + pair].0)];
                    for (dots, left) in dots.iter_mut().zip(left) {
                        // The fence makes the compiler read each word when it is used, because all words at once would
                        // take registers from the sums.
                        compiler_fence(Ordering::SeqCst);
                        let word = left.0[pair];
                        for (dot, levels) in dots.iter_mut().zip(levels) {
                            *dot = simd.add_bf16_dots(*dot, levels, word);
                        }
                    }
                }
                let x_sums = if HAS_LEAST { &self.x.sums[first..][..ROWS] } else { &[[0.0; 2]; ROWS] };
                for tile in 0..TILES {
                    let numbers = &numbers[4 * tile + 2 * part..][..2];
                    let (scale, least) = (floats(simd, &numbers[0]), floats(simd, &numbers[1]));
                    for ((sums, dots), x) in sums.iter_mut().zip(&dots).zip(x_sums) {
                        let to = &mut sums.as_chunks_mut().0[tile];
                        let mut sum = simd.mul_add(dots[tile], scale, simd.load(to));
                        if HAS_LEAST {
                            sum = simd.mul_add(simd.splat(x[part]), least, sum);
                        }
                        simd.store(sum, to);
                    }
                }
            }
        }
        ROWS
    }
}

/// The products of a single row and several right-hand sides.
struct RowProducts<'a, const RIGHTS: usize> {
    from: Narrow,
    x: BlockOfX<'a>,
    rights: [RightSide<'a>; RIGHTS],
    sums: [&'a mut Sums; RIGHTS],
}

impl<const RIGHTS: usize> Kernel for RowProducts<'_, RIGHTS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        of_format(simd, self.from, self);
    }
}

impl<const RIGHTS: usize> OfFormat for RowProducts<'_, RIGHTS> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, from: Narrow) {
        let Self { x, rights, sums, .. } = self;
        let (step_lines, num_scales) = (from.step_lines(), from.num_scales());
        let mut totals = [[simd.splat(0.0); TILES]; RIGHTS];
        for (totals, sums) in totals.iter_mut().zip(&sums) {
            for (total, sums) in totals.iter_mut().zip(sums.as_chunks().0) {
                *total = simd.load(sums);
            }
        }
        for (step, left) in x.lines.iter().enumerate() {
            for (totals, RightSide { lines, ahead }) in totals.iter_mut().zip(rights) {
                ahead.prefetch(simd, step, 0..step_lines);
                let (heads, lines) = lines.split_at(lines.len() - x.lines.len() * step_lines);
                let lines = &lines[step * step_lines..][..step_lines];
                let tiles = [from.scales(simd, (heads, step), lines, 0), from.scales(simd, (heads, step), lines, 1)];
                let levels = tiles[0].1;
                let dots = [simd.splat(0.0); TILES];
                let first = add_quarter(simd, from, (levels, 0), left, dots);
                let first = add_quarter(simd, from, (levels, 1), left, first);
                let second = if num_scales == 1 { first } else { dots };
                let second = add_quarter(simd, from, (levels, 2), left, second);
                let second = add_quarter(simd, from, (levels, 3), left, second);
                let dots = if num_scales == 1 { [second, second] } else { [first, second] };
                for part in 0..num_scales {
                    for tile in 0..TILES {
                        let (scale, least) = tiles[tile].0[part];
                        totals[tile] = simd.mul_add(dots[part][tile], scale, totals[tile]);
                        if from.has_least() {
                            totals[tile] = simd.mul_add(simd.splat(x.sums[step][part]), least, totals[tile]);
                        }
                    }
                }
            }
        }
        for (totals, sums) in totals.into_iter().zip(sums) {
            for (total, sums) in totals.into_iter().zip(sums.as_chunks_mut().0) {
                simd.store(total, sums);
            }
        }
    }
}

/// Adds to `dots`, those of two tiles, the products of a quarter of a step. The callers pass `quarter` as a constant, so
/// that the compiler unrolls the loops.
#[inline(always)]
fn add_quarter<S: Simd>(
    simd: S,
    from: Narrow,
    (levels, quarter): (&[Line], usize),
    left: &Line,
    mut dots: [S::Vector; TILES],
) -> [S::Vector; TILES] {
    for pair in quarter * PAIRS / 4..(quarter + 1) * PAIRS / 4 {
        for (tile, dots) in dots.iter_mut().enumerate() {
            *dots = simd.add_bf16_dots(*dots, from.pairs(simd, (levels, tile), pair), left.0[pair]);
        }
    }
    dots
}
