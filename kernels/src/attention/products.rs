//! Products of a few rows with the keys, or the values, of some groups.
//!
//! Entry points: [`Product`], which multiplies keys and values in the layout of the cache, with vectors; [`Pairs`] and
//! [`Floats`], the two ways to multiply. The rows are the left-hand side, keys or values the right-hand side. The
//! number of rows changes how often memory is read, never the order of additions: each sum is one chain over the words
//! of the right-hand side.

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, compiler_fence};

use super::chunk::{ChunkAhead, stored_lines};
use super::element::{Bf16Exact, KvElement, WordNumbers};
use super::groups::GROUP_SIZE;
use crate::isa::{Kernel, LANES, Simd};
use crate::lines::{Block, Line};

/// The number of values of a step of the left-hand side: two for each word of two runs of the right-hand side.
pub(super) const STEP_VALUES: usize = 2 * LANES;
/// The number of words in a run. The right-hand side is read in runs. A word has two values of each of sixteen columns,
/// so a run has sixteen values of each column.
pub(super) const RUN_WORDS: usize = LANES / 2;
/// The number of values in a word: two of each of sixteen columns.
const WORD_NUMBERS: usize = 2 * LANES;

/// A way to multiply values of the left-hand side with one type of numbers, sixteen columns of two numbers at a time.
pub(super) trait Dots<E: KvElement>: Copy + Send + Sync {
    /// The number of lines of a step of the left-hand side.
    const STEP_LINES: usize;
    /// True if the right-hand side may be laid out before it is multiplied.
    const CAN_BE_LAID_OUT: bool;

    /// The numbers of a word in registers.
    type Words<S: Simd>: Copy;

    /// Writes values of the left-hand side, rounded if the type requires it, to lines `distance` apart.
    fn put<S: Simd>(simd: S, values: &[f32; STEP_VALUES], to: &mut [Line], distance: usize);

    /// Converts the numbers of a word to the type in which they are multiplied.
    fn words<S: Simd>(simd: S, numbers: WordNumbers<'_, E>) -> Self::Words<S>;

    /// Writes the numbers of a word to a line in the layout of tiles.
    fn lay_out<S: Simd>(simd: S, numbers: WordNumbers<'_, E>, to: &mut Line);

    /// Adds to each sum the products of its column's two numbers with the two values at `word` of a line of the
    /// left-hand side.
    fn add<S: Simd>(simd: S, sums: S::Vector, words: Self::Words<S>, left: &Line, word: usize) -> S::Vector;
}

/// Multiplies pairs of bf16. Values of the left-hand side are rounded to bf16.
#[derive(Clone, Copy)]
pub(super) struct Pairs;

/// Multiplies in single precision. Nothing is rounded.
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
    fn words<S: Simd>(simd: S, numbers: WordNumbers<'_, E>) -> S::Integers {
        E::words(simd, numbers)
    }

    #[inline(always)]
    fn lay_out<S: Simd>(simd: S, numbers: WordNumbers<'_, E>, to: &mut Line) {
        simd.store_words(E::words(simd, numbers), &mut to.0);
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
    fn words<S: Simd>(simd: S, numbers: WordNumbers<'_, E>) -> [S::Vector; 2] {
        E::widen(simd, numbers)
    }

    fn lay_out<S: Simd>(_simd: S, _numbers: WordNumbers<'_, E>, _to: &mut Line) {
        unreachable!("only pairs of bf16 are laid out")
    }

    #[inline(always)]
    fn add<S: Simd>(simd: S, sums: S::Vector, [low, high]: [S::Vector; 2], left: &Line, word: usize) -> S::Vector {
        let first = simd.splat(f32::from_bits(left.0[2 * word % LANES]));
        // Without the fence the compiler reads both values at once, and then takes them apart.
        if S::NUM_SUMS > 4 {
            compiler_fence(Ordering::SeqCst);
        }
        let second = simd.splat(f32::from_bits(left.0[(2 * word + 1) % LANES]));
        simd.mul_add(second, high, simd.mul_add(first, low, sums))
    }
}

/// A right-hand side: vectors of sixteen columns of words, in runs of eight words.
pub(super) trait Runs<E: KvElement> {
    fn num_vectors(&self) -> usize;
    fn num_runs(&self) -> usize;
    /// Returns `VECTORS` vectors of a run, from `first_vector` on. Missing vectors are replaced by the last one.
    fn run<const VECTORS: usize>(&self, idx: usize, first_vector: usize) -> Run<'_, E, VECTORS>;
}

/// The words of one run, as `VECTORS` vectors.
pub(super) struct Run<'a, E: KvElement, const VECTORS: usize> {
    /// The numbers of each vector, from its first to its last. The slices have equal lengths, so bounds are checked
    /// once.
    vectors: [&'a [E::Stored]; VECTORS],
    /// The distance from a word to the next, in numbers.
    word_len: usize,
    /// The distance from a number to its partner, if the two are not adjacent.
    partners: usize,
}

/// The keys of groups as a right-hand side: columns are keys, words are pairs of dimensions.
pub(super) struct Keys<'a, E: KvElement>(pub(super) &'a [&'a [E::Stored]]);

/// The values of groups as a right-hand side: columns are dimensions, words are pairs of values.
pub(super) struct Values<'a, E: KvElement>(pub(super) &'a [&'a [E::Stored]]);

impl<E: KvElement> Runs<E> for Keys<'_, E> {
    #[inline(always)]
    fn num_vectors(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn num_runs(&self) -> usize {
        self.0[0].len() / (RUN_WORDS * WORD_NUMBERS)
    }

    #[inline(always)]
    fn run<const VECTORS: usize>(&self, idx: usize, first_vector: usize) -> Run<'_, E, VECTORS> {
        let first = idx * RUN_WORDS * WORD_NUMBERS;
        let len = (self.0[0].len() - first).min(RUN_WORDS * WORD_NUMBERS);
        let mut vectors = [self.0[0]; VECTORS];
        for (vector, numbers) in vectors.iter_mut().enumerate() {
            *numbers = &self.0[(first_vector + vector).min(self.0.len() - 1)][first..][..len];
        }
        Run { vectors, word_len: WORD_NUMBERS, partners: LANES }
    }
}

impl<E: KvElement> Runs<E> for Values<'_, E> {
    #[inline(always)]
    fn num_vectors(&self) -> usize {
        self.0[0].len() / (GROUP_SIZE * LANES)
    }

    #[inline(always)]
    fn num_runs(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn run<const VECTORS: usize>(&self, idx: usize, first_vector: usize) -> Run<'_, E, VECTORS> {
        let (group, last_vector) = (self.0[idx], self.num_vectors() - 1);
        let word_len = group.len() / RUN_WORDS;
        let vector_len = E::NEIGHBOURS * LANES;
        let len = group.len() - last_vector * vector_len;
        let mut vectors = [group; VECTORS];
        for (vector, numbers) in vectors.iter_mut().enumerate() {
            *numbers = &group[(first_vector + vector).min(last_vector) * vector_len..][..len];
        }
        Run { vectors, word_len, partners: word_len / 2 }
    }
}

impl<'a, E: KvElement, const VECTORS: usize> Run<'a, E, VECTORS> {
    #[inline(always)]
    pub(super) fn num_words(&self) -> usize {
        self.vectors[0].len().div_ceil(self.word_len)
    }

    #[inline(always)]
    pub(super) fn word(&self, idx: usize, vector: usize) -> WordNumbers<'a, E> {
        let numbers = &self.vectors[vector][idx * self.word_len..];
        if E::NEIGHBOURS == 2 {
            return [&numbers[..WORD_NUMBERS], &[]];
        }
        [&numbers[..LANES], &numbers[self.partners..][..LANES]]
    }
}

/// Adds the products of `left` and `right` to `sums`, and prefetches at most as many lines of `ahead` as it reads of
/// `right`.
pub(super) struct Product<'a, E: KvElement, D: Dots<E>, R: Runs<E>> {
    /// `[lines][rows]`
    pub(super) left: &'a [Line],
    pub(super) num_rows: usize,
    pub(super) right: &'a R,
    pub(super) ahead: &'a mut ChunkAhead,
    /// `[blocks of 32 columns][rows]`. The sums of columns that `right` lacks are unspecified.
    pub(super) sums: &'a mut [Block<f32>],
    pub(super) kinds: PhantomData<(E, D)>,
}

impl<E: KvElement, D: Dots<E>, R: Runs<E>> Kernel for Product<'_, E, D, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { left, num_rows, right, ahead, sums, .. } = self;
        let mut vector = 0;
        while vector < right.num_vectors() {
            let sums = &mut sums[vector / 2..];
            // With few rows, two vectors have too few sums to hide the latency of an addition. Four vectors have twice
            // as many.
            let are_four = S::NUM_SUMS >= 24 && num_rows < 8 && right.num_vectors() - vector > 2;
            let mut row = 0;
            while row < num_rows {
                let rows = Rows { left, num_rows, row };
                row += match num_rows - row {
                    6.. if are_four => rows.add::<S, E, D, 6, 4>(simd, (right, vector), ahead, sums),
                    4.. if are_four => rows.add::<S, E, D, 4, 4>(simd, (right, vector), ahead, sums),
                    3 if are_four => rows.add::<S, E, D, 3, 4>(simd, (right, vector), ahead, sums),
                    2 if are_four => rows.add::<S, E, D, 2, 4>(simd, (right, vector), ahead, sums),
                    _ if are_four => rows.add::<S, E, D, 1, 4>(simd, (right, vector), ahead, sums),
                    12.. if S::NUM_SUMS >= 24 => rows.add::<S, E, D, 12, 2>(simd, (right, vector), ahead, sums),
                    8.. if S::NUM_SUMS >= 16 => rows.add::<S, E, D, 8, 2>(simd, (right, vector), ahead, sums),
                    4.. if S::NUM_SUMS >= 8 => rows.add::<S, E, D, 4, 2>(simd, (right, vector), ahead, sums),
                    4.. if S::HAS_LONE_COLUMNS => {
                        rows.add::<S, E, D, 4, 1>(simd, (right, vector), ahead, sums);
                        rows.add::<S, E, D, 4, 1>(simd, (right, vector + 1), ahead, sums)
                    }
                    2.. => rows.add::<S, E, D, 2, 2>(simd, (right, vector), ahead, sums),
                    _ => rows.add::<S, E, D, 1, 2>(simd, (right, vector), ahead, sums),
                };
            }
            vector += if are_four { 4 } else { 2 };
        }
    }
}

/// Repeats a block for each row from 0 to `ROWS - 1`, at most 12. A loop over rows keeps its sums in registers only if
/// the compiler unrolls it, and a loop of this size is at the limit of what the compiler unrolls.
macro_rules! unrolled {
    ($row:ident < $rows:ident, $body:block) => {
        unrolled!(@ $row, $rows, $body, 0 1 2 3 4 5 6 7 8 9 10 11)
    };
    (@ $row:ident, $rows:ident, $body:block, $($idx:literal)*) => {
        const { assert!($rows <= 12, "the block is repeated at most 12 times") }
        $(if const { $rows > $idx } {
            let $row: usize = $idx;
            $body
        })*
    };
}

/// The rows of a block, from `row` on.
#[derive(Clone, Copy)]
struct Rows<'a> {
    left: &'a [Line],
    num_rows: usize,
    row: usize,
}

impl Rows<'_> {
    /// Adds the products of `ROWS` rows and `VECTORS` vectors of columns, from `first_vector` on, to `sums`. Returns
    /// `ROWS`.
    #[inline(always)]
    fn add<S: Simd, E: KvElement, D: Dots<E>, const ROWS: usize, const VECTORS: usize>(
        self,
        simd: S,
        (right, first_vector): (&impl Runs<E>, usize),
        ahead: &mut ChunkAhead,
        sums: &mut [Block<f32>],
    ) -> usize {
        let runs_per_line = 2 / D::STEP_LINES;
        // True for pairs of bf16 on instruction sets with many registers.
        let are_pairs = S::NUM_SUMS >= 24 && D::STEP_LINES == 1;
        let mut vectors = [[simd.splat(0.0); VECTORS]; ROWS];
        for (row, vectors) in (self.row..).zip(&mut vectors) {
            for (vector, to) in (first_vector % 2..).zip(vectors) {
                *to = simd.load(&sums[vector / 2].0[row].as_chunks().0[vector % 2]);
            }
        }
        for idx in 0..right.num_runs() {
            let run = right.run::<VECTORS>(idx, first_vector);
            let ahead = ahead.take(stored_lines::<E>(VECTORS * RUN_WORDS));
            let left = &self.left[idx / runs_per_line * self.num_rows + self.row..];
            let left = left.first_chunk::<ROWS>().expect("there are as many rows");
            // A bound that is not a constant keeps the compiler from unrolling the loop over words. Many sums need the
            // registers that unrolling would take.
            let num_words = if VECTORS > 2 || are_pairs { run.num_words() } else { RUN_WORDS };
            for word in 0..num_words {
                match stored_lines::<E>(VECTORS) {
                    8 => ahead.ask::<S, 8>(simd, 8 * word),
                    4 => ahead.ask::<S, 4>(simd, 4 * word),
                    2 => ahead.ask::<S, 2>(simd, 2 * word),
                    _ => ahead.ask::<S, 1>(simd, word),
                }
                let mut words = [D::words(simd, run.word(word, 0)); VECTORS];
                for (vector, words) in words.iter_mut().enumerate().skip(1) {
                    *words = D::words(simd, run.word(word, vector));
                }
                let word = idx % runs_per_line * RUN_WORDS + word;
                unrolled!(row < ROWS, {
                    // The fence makes the compiler read each value of the left-hand side when it is used, because
                    // earlier reads would take registers from the sums.
                    if are_pairs {
                        compiler_fence(Ordering::SeqCst);
                    }
                    for (sums, words) in vectors[row].iter_mut().zip(words) {
                        *sums = D::add(simd, *sums, words, &left[row], word);
                    }
                });
            }
        }
        for (row, vectors) in (self.row..).zip(vectors) {
            for (vector, from) in (first_vector % 2..).zip(vectors) {
                simd.store(from, &mut sums[vector / 2].0[row].as_chunks_mut().0[vector % 2]);
            }
        }
        ROWS
    }
}
