//! Products of blocks without tiles: a few rows times 32 columns, summed in registers.
//!
//! Door: [`add_product`]. Sums of integers are exact, so every instruction set answers the same bits. bf16 is added pair by pair, in
//! the order of the inputs, however many rows there are.

use std::sync::atomic::{Ordering, compiler_fence};

use crate::isa::{LANES, Simd};
use crate::lines::{Ahead, BLOCK_COLUMNS, Block, Line, STEP_LINES, TILE_SIZE};

/// Vectors that hold a block's columns.
const NUM_VECTORS: usize = BLOCK_COLUMNS / LANES;

/// What the words of lines are, and how they are multiplied.
pub(crate) trait Dots<S: Simd>: Copy {
    /// Of one output.
    type Sum;
    type Sums: Copy;

    fn load(simd: S, sums: &[Self::Sum; LANES]) -> Self::Sums;
    fn store(simd: S, sums: Self::Sums, to: &mut [Self::Sum; LANES]);
    /// A line of words as they are multiplied.
    fn words(simd: S, line: &Line) -> S::Integers;
    /// Adds the products of each of `words` and `word`.
    fn add(simd: S, sums: Self::Sums, words: S::Integers, word: u32) -> Self::Sums;
}

/// Four integers from -127 to 127 in a word.
#[derive(Clone, Copy)]
pub(crate) struct Int8Quads;

/// Two bf16 values in a word.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Pairs;

impl<S: Simd> Dots<S> for Int8Quads {
    type Sum = i32;
    type Sums = S::Integers;

    #[inline(always)]
    fn load(simd: S, sums: &[i32; LANES]) -> S::Integers {
        simd.load_integers(sums)
    }

    #[inline(always)]
    fn store(simd: S, sums: S::Integers, to: &mut [i32; LANES]) {
        simd.store_integers(sums, to);
    }

    #[inline(always)]
    fn words(simd: S, line: &Line) -> S::Integers {
        simd.load_quads(&line.0)
    }

    #[inline(always)]
    fn add(simd: S, sums: S::Integers, words: S::Integers, word: u32) -> S::Integers {
        simd.add_dots(sums, words, word)
    }
}

impl<S: Simd> Dots<S> for Bf16Pairs {
    type Sum = f32;
    type Sums = S::Vector;

    #[inline(always)]
    fn load(simd: S, sums: &[f32; LANES]) -> S::Vector {
        simd.load(sums)
    }

    #[inline(always)]
    fn store(simd: S, sums: S::Vector, to: &mut [f32; LANES]) {
        simd.store(sums, to);
    }

    #[inline(always)]
    fn words(simd: S, line: &Line) -> S::Integers {
        simd.load_words(&line.0)
    }

    #[inline(always)]
    fn add(simd: S, sums: S::Vector, words: S::Integers, word: u32) -> S::Vector {
        simd.add_bf16_dots(sums, words, word)
    }
}

/// How often lines are read for so many rows: once for those that come together, of which `rows_together` says how many they are.
#[inline(always)]
pub(crate) fn num_sweeps(mut num_rows: usize, rows_together: impl Fn(usize) -> usize) -> usize {
    let mut num_sweeps = 0;
    while num_rows > 0 {
        num_rows -= rows_together(num_rows);
        num_sweeps += 1;
    }
    num_sweeps
}

/// Of so many rows, those whose sums fit into registers.
#[inline(always)]
pub(crate) fn rows_together<S: Simd>(num_rows: usize) -> usize {
    match num_rows {
        12.. if S::NUM_SUMS >= 24 => 12,
        8.. if S::NUM_SUMS >= 16 => 8,
        4.. if S::NUM_SUMS >= 8 => 4,
        2.. if S::NUM_SUMS >= 4 => 2,
        _ => 1,
    }
}

/// Adds to `sums` `[rows, 32]` the products of `left` `[steps][rows][16 words]` and `right` `[steps][2][16 words][16 columns]`. Each
/// sweep asks for its share of the lines ahead.
#[inline(always)]
pub(crate) fn add_product<S: Simd, D: Dots<S>>(
    simd: S,
    _: D,
    (left, num_rows): (&[Line], usize),
    (right, ahead): (&[Line], Ahead),
    sums: &mut Block<D::Sum>,
) {
    let num_steps = right.len() / STEP_LINES;
    let shares = ahead.shares(num_sweeps(num_rows, rows_together::<S>), num_steps);
    let mut row = 0;
    for ahead in shares {
        let rows = Rows { left, num_rows, row, ahead };
        row += match rows_together::<S>(num_rows - row) {
            12 => add_rows::<S, D, 12>(simd, rows, right, sums),
            8 => add_rows::<S, D, 8>(simd, rows, right, sums),
            4 => add_rows::<S, D, 4>(simd, rows, right, sums),
            2 => add_rows::<S, D, 2>(simd, rows, right, sums),
            _ => add_rows::<S, D, 1>(simd, rows, right, sums),
        };
    }
}

/// Rows of a block, from one on.
#[derive(Clone, Copy)]
struct Rows<'a> {
    left: &'a [Line],
    num_rows: usize,
    row: usize,
    ahead: Ahead,
}

#[inline(always)]
fn add_rows<S: Simd, D: Dots<S>, const ROWS: usize>(
    simd: S,
    rows: Rows<'_>,
    right: &[Line],
    sums: &mut Block<D::Sum>,
) -> usize {
    let sums = &mut sums.0[rows.row..rows.row + ROWS];
    let mut vectors =
        [[D::load(simd, sums[0][..LANES].first_chunk().expect("a row has more columns")); NUM_VECTORS]; ROWS];
    for (vectors, sums) in vectors.iter_mut().zip(&*sums) {
        for (vector, sums) in vectors.iter_mut().zip(sums.as_chunks().0) {
            *vector = D::load(simd, sums);
        }
    }
    let steps = rows.left.chunks_exact(rows.num_rows).zip(right.chunks_exact(STEP_LINES));
    for (step, (left, right)) in steps.enumerate() {
        let left = &left[rows.row..rows.row + ROWS];
        let (first, second) = right.split_at(TILE_SIZE);
        for pair in 0..TILE_SIZE {
            // A few at a time: there are few places for lines that are under way.
            rows.ahead.prefetch(simd, step, 2 * pair..2 * pair + 2);
            let (first, second) = (D::words(simd, &first[pair]), D::words(simd, &second[pair]));
            for (row, vectors) in vectors.iter_mut().enumerate() {
                // Words are read one by one, as they are used: all at once would take registers from the sums.
                compiler_fence(Ordering::SeqCst);
                let word = left[row].0[pair];
                vectors[0] = D::add(simd, vectors[0], first, word);
                vectors[1] = D::add(simd, vectors[1], second, word);
            }
        }
    }
    for (vectors, sums) in vectors.into_iter().zip(sums) {
        for (vector, sums) in vectors.into_iter().zip(sums.as_chunks_mut().0) {
            D::store(simd, vector, sums);
        }
    }
    ROWS
}
