//! Products of blocks with vector instructions instead of tiles: a few rows times 32 columns, summed in registers.
//!
//! Entry points: [`add_product`], [`add_products_of_row`]. Integer sums are exact, so every instruction set returns the
//! same bits. Products of bf16 are added pair by pair, in the order of the inputs, whatever the number of rows.

use std::sync::atomic::{Ordering, compiler_fence};

use crate::isa::{Kernel, LANES, Simd};
use crate::lines::{BLOCK_COLUMNS, Block, LeftSide, Line, RightSide, STEP_LINES, TILE_SIZE};

/// The number of vectors that hold the columns of a block.
const NUM_VECTORS: usize = BLOCK_COLUMNS / LANES;

/// The type of the values in the words of lines, and the way to multiply them.
pub(crate) trait Dots: Copy {
    /// The type of the sum of one output.
    type Sum: Copy;
    type Sums<S: Simd>: Copy;

    /// The number of parts of a word, which are multiplied one after the other. A row on the left has a line for each
    /// part.
    fn num_parts<S: Simd>() -> usize;
    fn load<S: Simd>(simd: S, sums: &[Self::Sum; LANES]) -> Self::Sums<S>;
    fn store<S: Simd>(simd: S, sums: Self::Sums<S>, to: &mut [Self::Sum; LANES]);
    /// Loads one part of each word of a line, in the form in which it is multiplied.
    fn words<S: Simd>(simd: S, line: &Line, part: usize) -> S::Integers;
    /// Adds to each sum the dot product of `word` and its word of `words`.
    fn add<S: Simd>(simd: S, sums: Self::Sums<S>, words: S::Integers, word: u32) -> Self::Sums<S>;
}

/// Four int8 values, from -127 to 127, in a word.
#[derive(Clone, Copy)]
pub(crate) struct Int8Quads;

/// Two bf16 values in a word.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Pairs;

impl Dots for Int8Quads {
    type Sum = i32;
    type Sums<S: Simd> = S::Integers;

    #[inline(always)]
    fn num_parts<S: Simd>() -> usize {
        S::DOT_PARTS
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, sums: &[i32; LANES]) -> S::Integers {
        simd.load_integers(sums)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, sums: S::Integers, to: &mut [i32; LANES]) {
        simd.store_integers(sums, to);
    }

    #[inline(always)]
    fn words<S: Simd>(simd: S, line: &Line, part: usize) -> S::Integers {
        simd.load_quads(&line.0, part)
    }

    #[inline(always)]
    fn add<S: Simd>(simd: S, sums: S::Integers, words: S::Integers, word: u32) -> S::Integers {
        simd.add_dots(sums, words, word)
    }
}

impl Dots for Bf16Pairs {
    type Sum = f32;
    type Sums<S: Simd> = S::Vector;

    #[inline(always)]
    fn num_parts<S: Simd>() -> usize {
        1
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, sums: &[f32; LANES]) -> S::Vector {
        simd.load(sums)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, sums: S::Vector, to: &mut [f32; LANES]) {
        simd.store(sums, to);
    }

    #[inline(always)]
    fn words<S: Simd>(simd: S, line: &Line, _part: usize) -> S::Integers {
        simd.load_words(&line.0)
    }

    #[inline(always)]
    fn add<S: Simd>(simd: S, sums: S::Vector, words: S::Integers, word: u32) -> S::Vector {
        simd.add_bf16_dots(sums, words, word)
    }
}

/// Returns how often the right-hand lines are read for `num_rows` rows: once for each set of rows that are multiplied
/// together. `rows_together` maps the remaining rows to the size of the next set.
#[inline(always)]
pub(crate) fn num_sweeps(mut num_rows: usize, rows_together: impl Fn(usize) -> usize) -> usize {
    let mut num_sweeps = 0;
    while num_rows > 0 {
        num_rows -= rows_together(num_rows);
        num_sweeps += 1;
    }
    num_sweeps
}

/// The number of rows, at most `num_rows`, that are multiplied together.
#[inline(always)]
pub(crate) fn rows_together<S: Simd>(num_rows: usize) -> usize {
    match num_rows {
        12.. if S::NUM_SUMS >= 24 => 12,
        8.. if S::NUM_SUMS >= 16 => 8,
        6.. if S::HAS_LONE_COLUMNS => 6,
        4.. if S::NUM_SUMS >= 8 || S::HAS_LONE_COLUMNS => 4,
        3 if S::HAS_LONE_COLUMNS => 3,
        2.. if S::NUM_SUMS >= 4 => 2,
        _ => 1,
    }
}

/// Adds to `sums` `[rows, 32]` the products of `left` `[steps][rows][parts][16 words]` and `right`
/// `[steps][2][16 words][16 columns]`. Each sweep over `right` prefetches its share of `right.ahead`.
#[inline(always)]
pub(crate) fn add_product<S: Simd, D: Dots>(
    simd: S,
    _: D,
    left: LeftSide<'_>,
    right: RightSide<'_>,
    sums: &mut Block<D::Sum>,
) {
    simd.call(Product::<D> { left, right, sums });
}

/// Adds to `sums` the products of one row `[steps][parts][16 words]` and several `rights` at once. This is faster than
/// one after the other, because memory delivers several streams faster than one, and because more sums are independent
/// of each other.
#[inline(always)]
pub(crate) fn add_products_of_row<S: Simd, D: Dots, const RIGHTS: usize>(
    simd: S,
    _: D,
    left: &[Line],
    rights: [RightSide<'_>; RIGHTS],
    sums: [&mut Block<D::Sum>; RIGHTS],
) {
    simd.call(RowProducts::<D, RIGHTS> { left, rights, sums });
}

/// The product of the rows of a block and one right-hand side.
struct Product<'a, D: Dots> {
    left: LeftSide<'a>,
    right: RightSide<'a>,
    sums: &'a mut Block<D::Sum>,
}

impl<D: Dots> Kernel for Product<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { left, right, sums } = self;
        let num_steps = right.lines.len() / STEP_LINES;
        let shares = right.ahead.shares(num_sweeps(left.num_rows, rows_together::<S>), num_steps);
        let mut row = 0;
        for ahead in shares {
            let (rows, right) = (Rows { left, row }, RightSide { ahead, ..right });
            row += match rows_together::<S>(left.num_rows - row) {
                12 => rows.add::<S, D, 12>(simd, right, sums),
                8 => rows.add::<S, D, 8>(simd, right, sums),
                6 => rows.add_columns::<S, D, 6>(simd, right, sums),
                4 if S::HAS_LONE_COLUMNS => rows.add_columns::<S, D, 4>(simd, right, sums),
                4 => rows.add::<S, D, 4>(simd, right, sums),
                3 => rows.add_columns::<S, D, 3>(simd, right, sums),
                2 => rows.add::<S, D, 2>(simd, right, sums),
                _ => rows.add::<S, D, 1>(simd, right, sums),
            };
        }
    }
}

/// The products of one row and several right-hand sides.
struct RowProducts<'a, D: Dots, const RIGHTS: usize> {
    left: &'a [Line],
    rights: [RightSide<'a>; RIGHTS],
    sums: [&'a mut Block<D::Sum>; RIGHTS],
}

impl<D: Dots, const RIGHTS: usize> Kernel for RowProducts<'_, D, RIGHTS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { left, rights, sums } = self;
        for right in &rights {
            // The assertion makes this number a constant for the compiler, so that it can unroll the prefetch loop.
            assert_eq!(right.ahead.lines_per_step, STEP_LINES, "each line that is read once must be prefetched once");
        }
        let rows = Rows { left: LeftSide { lines: left, num_rows: 1 }, row: 0 };
        rows.add_vectors::<S, D, 1, NUM_VECTORS, RIGHTS>(simd, rights, 0, sums);
    }
}

/// The rows of the left-hand side from `row` on.
#[derive(Clone, Copy)]
struct Rows<'a> {
    left: LeftSide<'a>,
    row: usize,
}

impl Rows<'_> {
    /// Adds the products of `ROWS` rows and all columns at once. Returns `ROWS`.
    #[inline(always)]
    fn add<S: Simd, D: Dots, const ROWS: usize>(
        self,
        simd: S,
        right: RightSide<'_>,
        sums: &mut Block<D::Sum>,
    ) -> usize {
        self.add_vectors::<S, D, ROWS, NUM_VECTORS, 1>(simd, [right], 0, [sums]);
        ROWS
    }

    /// Adds the products of `ROWS` rows, one vector of columns at a time. Returns `ROWS`.
    #[inline(always)]
    fn add_columns<S: Simd, D: Dots, const ROWS: usize>(
        self,
        simd: S,
        right: RightSide<'_>,
        sums: &mut Block<D::Sum>,
    ) -> usize {
        for vector in 0..NUM_VECTORS {
            self.add_vectors::<S, D, ROWS, 1, 1>(simd, [right], vector, [sums]);
        }
        ROWS
    }

    #[inline(always)]
    fn add_vectors<S: Simd, D: Dots, const ROWS: usize, const VECTORS: usize, const RIGHTS: usize>(
        self,
        simd: S,
        rights: [RightSide<'_>; RIGHTS],
        first_vector: usize,
        sums: [&mut Block<D::Sum>; RIGHTS],
    ) {
        let num_parts = D::num_parts::<S>();
        // Loops over sums have constant bounds, because the compiler keeps sums in registers only if it can unroll
        // every loop.
        let mut sums = sums.map(|sums| sums.0[self.row..].first_chunk_mut::<ROWS>().expect("a block has these rows"));
        let mut vectors = [[[D::load(simd, columns(&sums[0][0], 0)); VECTORS]; ROWS]; RIGHTS];
        for (vectors, sums) in vectors.iter_mut().zip(&sums) {
            for (vectors, sums) in vectors.iter_mut().zip(sums.iter()) {
                for (vector, to) in vectors.iter_mut().enumerate() {
                    *to = D::load(simd, columns(sums, first_vector + vector));
                }
            }
        }
        let LeftSide { lines, num_rows } = self.left;
        for (step, left) in lines.chunks_exact(num_rows * num_parts).enumerate() {
            let left = &left[self.row * num_parts..][..ROWS * num_parts];
            let rights = rights.map(|RightSide { lines, ahead }| RightSide {
                lines: &lines[step * STEP_LINES..][first_vector * TILE_SIZE..][..VECTORS * TILE_SIZE],
                ahead,
            });
            // The parts are multiplied one after the other, because the words of both parts at once would take
            // registers from the sums.
            for part in 0..num_parts {
                for idx in 0..TILE_SIZE {
                    if VECTORS < NUM_VECTORS && part == 0 {
                        // Prefetch the next step, because the hardware prefetcher does not recognise an access to every
                        // other tile or to a few rows of a block.
                        simd.prefetch(rights[0].lines.as_ptr().wrapping_add(STEP_LINES + idx));
                        if idx < ROWS * num_parts {
                            simd.prefetch(left.as_ptr().wrapping_add(num_rows * num_parts + idx));
                        }
                    }
                    for (vectors, RightSide { lines: right, ahead }) in vectors.iter_mut().zip(rights) {
                        if part == 0 && first_vector == 0 {
                            // Prefetch two lines at a time, because the processor can have only a few cache misses
                            // outstanding.
                            ahead.prefetch(simd, step, 2 * idx..2 * idx + 2);
                        }
                        let mut words = [D::words(simd, &right[idx], part); VECTORS];
                        for (vector, words) in words.iter_mut().enumerate() {
                            *words = D::words(simd, &right[vector * TILE_SIZE + idx], part);
                        }
                        for (row, vectors) in vectors.iter_mut().enumerate() {
                            // The fence makes the compiler read each word when it is used, because all words at once
                            // would take registers from the sums.
                            compiler_fence(Ordering::SeqCst);
                            let word = left[row * num_parts + part].0[idx];
                            for (vector, words) in vectors.iter_mut().zip(words) {
                                *vector = D::add(simd, *vector, words, word);
                            }
                        }
                    }
                }
            }
        }
        for (vectors, sums) in vectors.iter().zip(&mut sums) {
            for (vectors, sums) in vectors.iter().zip(sums.iter_mut()) {
                for (vector, from) in vectors.iter().enumerate() {
                    D::store(simd, *from, columns_mut(sums, first_vector + vector));
                }
            }
        }
    }
}

/// Returns the columns of one vector in the sums of a row.
#[inline(always)]
fn columns<T>(sums: &[T; BLOCK_COLUMNS], vector: usize) -> &[T; LANES] {
    &sums.as_chunks().0[vector]
}

/// Like [`columns`], but mutable.
#[inline(always)]
fn columns_mut<T>(sums: &mut [T; BLOCK_COLUMNS], vector: usize) -> &mut [T; LANES] {
    &mut sums.as_chunks_mut().0[vector]
}
