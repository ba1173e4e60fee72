//! Products of a few rows on the left with the keys, or the values, of some groups.
//!
//! Doors: [`add_product`], by vectors, where keys and values lie; [`Pairs`] and [`Floats`], the two ways to multiply. How many rows there
//! are changes how often memory is read, never the order of additions: each sum is one chain over the words of what is on the right.

use super::chunk::ChunkAhead;
use super::element::{Bf16Exact, KvElement};
use super::groups::GROUP_SIZE;
use crate::isa::{LANES, Simd};
use crate::lines::{Block, Line};

/// Values of a step on the left: two for each of sixteen words.
pub(super) const STEP_VALUES: usize = 2 * LANES;
/// Words of a run on the right: sixteen values for each column.
const RUN_WORDS: usize = LANES / 2;

/// How values on the left and a type of numbers on the right are multiplied, sixteen columns of two numbers at a time.
pub(super) trait Dots<E: KvElement>: Copy + Send + Sync {
    /// Lines of a step on the left.
    const STEP_LINES: usize;
    /// Whether what is on the right may be laid out before.
    const CAN_BE_LAID_OUT: bool;

    /// A line on the right.
    type Words<S: Simd>: Copy;

    /// Values on the left, rounded as it must be: lines `distance` apart.
    fn put<S: Simd>(simd: S, values: &[f32; STEP_VALUES], to: &mut [Line], distance: usize);

    /// Numbers of a line, as [`KvElement::widen`] has them.
    fn words<S: Simd>(simd: S, line: &[E::Stored], next: usize) -> Self::Words<S>;

    /// Lays them out for tiles.
    fn lay_out<S: Simd>(simd: S, line: &[E::Stored], next: usize, to: &mut Line);

    /// To each sum the products of its two numbers and the two values at `word` of a line on the left.
    fn add<S: Simd>(simd: S, sums: S::Vector, words: Self::Words<S>, left: &Line, word: usize) -> S::Vector;
}

/// Pairs of bf16, to which the values on the left are rounded.
#[derive(Clone, Copy)]
pub(super) struct Pairs;

/// Floats of 32 bits: nothing is rounded.
#[derive(Clone, Copy)]
pub(super) struct Floats;

impl<E: Bf16Exact> Dots<E> for Pairs {
    const STEP_LINES: usize = 1;
    const CAN_BE_LAID_OUT: bool = true;

    type Words<S: Simd> = S::Integers;

    #[inline(always)]
    fn put<S: Simd>(simd: S, values: &[f32; STEP_VALUES], to: &mut [Line], _distance: usize) {
        simd.round_to_bf16(values, &mut to[0]);
    }

    #[inline(always)]
    fn words<S: Simd>(simd: S, line: &[E::Stored], next: usize) -> S::Integers {
        E::words(simd, line, next)
    }

    #[inline(always)]
    fn lay_out<S: Simd>(simd: S, line: &[E::Stored], next: usize, to: &mut Line) {
        simd.store_words(E::words(simd, line, next), &mut to.0);
    }

    #[inline(always)]
    fn add<S: Simd>(simd: S, sums: S::Vector, words: S::Integers, left: &Line, word: usize) -> S::Vector {
        simd.add_bf16_dots(sums, words, left.0[word % LANES])
    }
}

impl<E: KvElement> Dots<E> for Floats {
    const STEP_LINES: usize = 2;
    const CAN_BE_LAID_OUT: bool = false;

    type Words<S: Simd> = [S::Vector; 2];

    #[inline(always)]
    fn put<S: Simd>(_simd: S, values: &[f32; STEP_VALUES], to: &mut [Line], distance: usize) {
        for (to, values) in to.iter_mut().step_by(distance).zip(values.as_chunks::<LANES>().0) {
            for (to, value) in to.0.iter_mut().zip(values) {
                *to = value.to_bits();
            }
        }
    }

    #[inline(always)]
    fn words<S: Simd>(simd: S, line: &[E::Stored], next: usize) -> [S::Vector; 2] {
        E::widen(simd, line, next)
    }

    fn lay_out<S: Simd>(_simd: S, _line: &[E::Stored], _next: usize, _to: &mut Line) {
        unreachable!("tiles multiply pairs alone")
    }

    #[inline(always)]
    fn add<S: Simd>(simd: S, sums: S::Vector, [low, high]: [S::Vector; 2], left: &Line, word: usize) -> S::Vector {
        let [first, second] = [left.0[2 * word % LANES], left.0[(2 * word + 1) % LANES]].map(f32::from_bits);
        let sums = simd.mul_add(simd.splat(first), low, sums);
        simd.mul_add(simd.splat(second), high, sums)
    }
}

/// What is on the right: up to 32 columns of words, in runs of eight.
pub(super) trait Runs<E: KvElement> {
    fn num_runs(&self) -> usize;
    fn run(&self, idx: usize) -> Run<'_, E>;
}

/// Eight words of 32 columns.
pub(super) struct Run<'a, E: KvElement> {
    /// The first sixteen columns and the others: lines `stride` numbers apart. What is next to a line is `next` numbers behind it.
    columns: [&'a [E::Stored]; 2],
    stride: usize,
    next: usize,
}

/// Keys of two groups: columns are keys, words are pairs of dimensions.
pub(super) struct Keys<'a, E: KvElement>(pub(super) [&'a [E::Stored]; 2]);

/// 32 dimensions of values: columns are dimensions, words are pairs of values.
pub(super) struct Values<'a, E: KvElement> {
    pub(super) groups: &'a [&'a [E::Stored]],
    pub(super) first_dimension: usize,
}

impl<E: KvElement> Runs<E> for Keys<'_, E> {
    #[inline(always)]
    fn num_runs(&self) -> usize {
        self.0[0].len() / (2 * RUN_WORDS * GROUP_SIZE)
    }

    #[inline(always)]
    fn run(&self, idx: usize) -> Run<'_, E> {
        let first = idx * 2 * RUN_WORDS * GROUP_SIZE;
        let columns = [&self.0[0][first..], &self.0[1][first..]];
        Run { columns, stride: 2 * GROUP_SIZE, next: GROUP_SIZE }
    }
}

impl<E: KvElement> Runs<E> for Values<'_, E> {
    #[inline(always)]
    fn num_runs(&self) -> usize {
        self.groups.len()
    }

    #[inline(always)]
    fn run(&self, idx: usize) -> Run<'_, E> {
        let (group, num_dimensions) = (self.groups[idx], self.groups[idx].len() / GROUP_SIZE);
        // Where the last step has sixteen dimensions, it has them twice.
        let second = (self.first_dimension + LANES).min(num_dimensions - LANES);
        let columns = [self.first_dimension, second].map(|first| &group[first * E::NEIGHBOURS..]);
        Run { columns, stride: 2 * num_dimensions, next: num_dimensions }
    }
}

/// Adds to `sums` `[rows, 32]` the products of `left` `[lines][rows]` and `right`, and asks for as many lines ahead as it reads.
#[inline(always)]
pub(super) fn add_product<S: Simd, E: KvElement, D: Dots<E>>(
    simd: S,
    _: D,
    (left, num_rows): (&[Line], usize),
    (right, ahead): (&impl Runs<E>, &mut ChunkAhead<'_, E>),
    sums: &mut Block<f32>,
) {
    let mut row = 0;
    while row < num_rows {
        let rows = Rows { left, num_rows, row };
        row += match num_rows - row {
            12.. if S::NUM_SUMS >= 24 => rows.add::<S, E, D, 12, 2>(simd, right, ahead, sums),
            8.. if S::NUM_SUMS >= 16 => rows.add::<S, E, D, 8, 2>(simd, right, ahead, sums),
            4.. if S::NUM_SUMS >= 8 => rows.add::<S, E, D, 4, 2>(simd, right, ahead, sums),
            4.. if S::HAS_LONE_COLUMNS => rows.add::<S, E, D, 4, 1>(simd, right, ahead, sums),
            2.. => rows.add::<S, E, D, 2, 2>(simd, right, ahead, sums),
            _ => rows.add::<S, E, D, 1, 2>(simd, right, ahead, sums),
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

impl Rows<'_> {
    /// `COLUMNS` vectors of columns at a time.
    #[inline(always)]
    fn add<S: Simd, E: KvElement, D: Dots<E>, const ROWS: usize, const COLUMNS: usize>(
        self,
        simd: S,
        right: &impl Runs<E>,
        ahead: &mut ChunkAhead<'_, E>,
        sums: &mut Block<f32>,
    ) -> usize {
        let sums = &mut sums.0[self.row..self.row + ROWS];
        let runs_per_line = 2 / D::STEP_LINES;
        for column in (0..2).step_by(COLUMNS) {
            let mut vectors = [[simd.splat(0.0); 2]; ROWS];
            for (vectors, sums) in vectors.iter_mut().zip(&*sums) {
                let (sums, _) = sums.as_chunks();
                vectors[0] = simd.load(&sums[column]);
                if COLUMNS == 2 {
                    vectors[1] = simd.load(&sums[1]);
                }
            }
            for idx in 0..right.num_runs() {
                ahead.ask(simd, COLUMNS * RUN_WORDS);
                let Run { columns, stride, next } = right.run(idx);
                let left = &self.left[idx / runs_per_line * self.num_rows + self.row..][..ROWS];
                for word in 0..RUN_WORDS {
                    let first = D::words(simd, &columns[column][word * stride..], next);
                    let second = if COLUMNS == 2 { D::words(simd, &columns[1][word * stride..], next) } else { first };
                    for (left, vectors) in left.iter().zip(&mut vectors) {
                        let word = idx % runs_per_line * RUN_WORDS + word;
                        vectors[0] = D::add(simd, vectors[0], first, left, word);
                        if COLUMNS == 2 {
                            vectors[1] = D::add(simd, vectors[1], second, left, word);
                        }
                    }
                }
            }
            for (vectors, sums) in vectors.into_iter().zip(&mut *sums) {
                let (sums, _) = sums.as_chunks_mut();
                simd.store(vectors[0], &mut sums[column]);
                if COLUMNS == 2 {
                    simd.store(vectors[1], &mut sums[1]);
                }
            }
        }
        ROWS
    }
}
