//! Products with weights of few bits: a few rows times the 32 outputs of a panel, a group of inputs at a time.
//!
//! Entry points: [`add_product`], which multiplies what [`unpack`] returns, and [`add_products_of_row`], which unpacks
//! in registers. Both add in the same order, whatever the number of rows: the products of a group's levels and x, in
//! the order of inputs, then the scale times their sum, then the least number times the sum of x. So weights are never
//! rounded. x is bf16 if the instruction set multiplies pairs of bf16, otherwise f32.

use std::sync::atomic::{Ordering, compiler_fence};

use numbers::blocks::BlockType;

use super::blocks::BlockOfX;
use super::narrow::{Narrow, Steps};
use crate::isa::{Kernel, LANES, Simd};
use crate::lines::{Ahead, BLOCK_COLUMNS, Block, Line, RightSide, STEP_LINES, TILE_SIZE};
use crate::vector_tile::{num_sweeps, rows_together};

/// The number of tiles of a panel.
const TILES: usize = BLOCK_COLUMNS / LANES;
/// The number of pairs of inputs of a step.
const PAIRS: usize = TILE_SIZE;
/// The number of lines of scales in an unpacked step: `[2 tiles][2 halves][scales, least numbers]`.
const SCALE_LINES: usize = TILES * 4;

/// The sums of a row for the outputs of a panel.
type Sums = [f32; BLOCK_COLUMNS];

/// The number of parts of a pair of inputs: one word with both in bf16, or two numbers in f32.
const fn num_parts<S: Simd>() -> usize {
    if S::HAS_PAIRS { 1 } else { 2 }
}

/// The number of lines of an unpacked step: the scales, then the levels `[2 tiles][16 pairs][parts][16 outputs]`.
const fn unpacked_lines<S: Simd>() -> usize {
    SCALE_LINES + STEP_LINES * num_parts::<S>()
}

/// Unpacks steps to scales and levels in `scratch`.
#[inline(always)]
pub(super) fn unpack<S: Simd>(simd: S, from: Narrow, steps: Steps<'_>, scratch: &mut Vec<Line>) {
    scratch.resize(steps.lines.len() / from.step_lines() * unpacked_lines::<S>(), Line([0; LANES]));
    simd.call_for_floats(Unpack { from, steps, to: scratch });
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
    simd.call_for_floats(Product { from, x, num_rows, right, sums });
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
    simd.call_for_floats(RowProducts { from, x, rights, sums });
}

/// Work on weights of one format.
trait OfFormat {
    /// Does the work. `from` is a constant for the compiler, which leaves out the code for other formats.
    fn run<S: Simd>(self, simd: S, from: Narrow);
}

/// Runs `work` with `from` as a constant, unless the instruction set has no vectors, where it would be much code.
#[inline(always)]
fn of_format<S: Simd>(simd: S, from: Narrow, work: impl OfFormat) {
    match from {
        _ if !S::HAS_VECTORS => work.run(simd, from),
        Narrow::Mxfp4 => work.run(simd, Narrow::Mxfp4),
        Narrow::Blocks(BlockType::IQ4_NL) => work.run(simd, Narrow::Blocks(BlockType::IQ4_NL)),
        Narrow::Blocks(BlockType::IQ4_XS) => work.run(simd, Narrow::Blocks(BlockType::IQ4_XS)),
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
        let unpacked = lines.chunks_exact(from.step_lines()).zip(to.chunks_exact_mut(unpacked_lines::<S>()));
        for (idx, (step, to)) in unpacked.enumerate() {
            let (numbers, to) = to.split_at_mut(SCALE_LINES);
            for tile in 0..TILES {
                let (levels, scales) = (from.levels(step), from.scales(simd, (heads, first + idx), step, tile));
                let numbers = &mut numbers[4 * tile..][..4];
                for (half, (scale, least)) in scales.into_iter().enumerate() {
                    set_floats(simd, scale, &mut numbers[2 * half]);
                    set_floats(simd, least, &mut numbers[2 * half + 1]);
                }
                let num_parts = num_parts::<S>();
                let to = &mut to[tile * PAIRS * num_parts..][..PAIRS * num_parts];
                for (idx, to) in to.iter_mut().enumerate() {
                    if S::HAS_PAIRS {
                        simd.store_words(from.pairs(simd, (levels, tile), idx), &mut to.0);
                    } else {
                        set_floats(simd, from.level(simd, (levels, tile), idx), to);
                    }
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
            self.add_tiles::<S, ROWS, TILES>(simd, (row, 0));
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
        for (step, right) in lines.chunks_exact(unpacked_lines::<S>()).enumerate() {
            let first = step * self.num_rows + first_row;
            let left = &self.x.lines[first * num_parts..][..ROWS * num_parts];
            let (numbers, levels) = right.split_at(SCALE_LINES);
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
                    let numbers = &numbers[4 * (first_tile + tile) + 2 * half..][..2];
                    let (scale, least) = (floats(simd, &numbers[0]), floats(simd, &numbers[1]));
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
        let (num_parts, num_steps) = (num_parts::<S>(), x.lines.len() / num_parts::<S>());
        let mut totals = [[simd.splat(0.0); TILES]; RIGHTS];
        for (totals, sums) in totals.iter_mut().zip(&sums) {
            for (total, sums) in totals.iter_mut().zip(sums.as_chunks().0) {
                *total = simd.load(sums);
            }
        }
        for (step, left) in x.lines.chunks_exact(num_parts).enumerate() {
            for (totals, RightSide { lines, ahead }) in totals.iter_mut().zip(rights) {
                let (heads, lines) = lines.split_at(lines.len() - num_steps * step_lines);
                let lines = &lines[step * step_lines..][..step_lines];
                // A constant number of lines, so that each prefetch is one instruction.
                let ahead = Ahead { lines_per_step: step_lines, ..ahead };
                let of_row = StepOfRow { from, levels: from.levels(lines), left, ahead, step };
                let dots = [simd.splat(0.0); TILES];
                let first = of_row.add_quarter(simd, 0, dots);
                let first = of_row.add_quarter(simd, 1, first);
                let second = of_row.add_quarter(simd, 2, if num_scales == 1 { first } else { dots });
                let second = of_row.add_quarter(simd, 3, second);
                let dots = if num_scales == 1 { [second, second] } else { [first, second] };
                for (tile, total) in totals.iter_mut().enumerate() {
                    let scales = from.scales(simd, (heads, step), lines, tile);
                    for half in 0..num_scales {
                        let (scale, least) = scales[half];
                        *total = simd.mul_add(dots[half][tile], scale, *total);
                        if from.takes_sums(S::HAS_PAIRS) {
                            *total = simd.mul_add(simd.splat(x.sums[step][half]), least, *total);
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

/// A step of a panel, and its part of a row.
struct StepOfRow<'a> {
    from: Narrow,
    levels: &'a [Line],
    /// A line for each part.
    left: &'a [Line],
    ahead: Ahead,
    step: usize,
}

impl StepOfRow<'_> {
    /// Adds to `dots`, those of two tiles, the products of a quarter of the step. The caller passes `quarter` as a
    /// constant, so that every position of a level is one.
    #[inline(always)]
    fn add_quarter<S: Simd>(&self, simd: S, quarter: usize, dots: [S::Vector; TILES]) -> [S::Vector; TILES] {
        let first = quarter * PAIRS / 4;
        let dots = self.add_pair(simd, first, dots);
        let dots = self.add_pair(simd, first + 1, dots);
        let dots = self.add_pair(simd, first + 2, dots);
        self.add_pair(simd, first + 3, dots)
    }

    /// Adds to `dots` the products of a pair of inputs.
    #[inline(always)]
    fn add_pair<S: Simd>(&self, simd: S, pair: usize, mut dots: [S::Vector; TILES]) -> [S::Vector; TILES] {
        let Self { from, levels, left, ahead, step } = *self;
        // Prefetch few lines at a time, because the processor can have only a few cache misses outstanding.
        let [first, last] = [pair, pair + 1].map(|pair| pair * ahead.lines_per_step / PAIRS);
        ahead.prefetch(simd, step, first..last);
        // The fence makes the compiler read each word when it is used.
        compiler_fence(Ordering::SeqCst);
        for (tile, dots) in dots.iter_mut().enumerate() {
            if S::HAS_PAIRS {
                *dots = simd.add_bf16_dots(*dots, from.pairs(simd, (levels, tile), pair), left[0].0[pair]);
                continue;
            }
            for (part, left) in left.iter().enumerate() {
                let level = from.level(simd, (levels, tile), 2 * pair + part);
                *dots = simd.mul_add(level, simd.splat(f32::from_bits(left.0[pair])), *dots);
            }
        }
        dots
    }
}
