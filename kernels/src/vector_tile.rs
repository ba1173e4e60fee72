//! Products of blocks without tiles: a few rows times 32 columns, summed in registers.
//!
//! Door: [`add_product`]. Sums of integers are exact, so every instruction set answers the same bits. bf16 is added pair by pair, in
//! the order of the inputs, however many rows there are.

use std::sync::atomic::{Ordering, compiler_fence};

use crate::isa::{Kernel, LANES, Simd};
use crate::lines::{BLOCK_COLUMNS, Block, LeftSide, Line, RightSide, STEP_LINES, TILE_SIZE};

/// Vectors that hold a block's columns.
const NUM_VECTORS: usize = BLOCK_COLUMNS / LANES;

/// What the words of lines are, and how they are multiplied.
pub(crate) trait Dots: Copy {
    /// Of one output.
    type Sum: Copy;
    type Sums<S: Simd>: Copy;

    /// Parts of words that are multiplied one after the other: of each, a row on the left has a line of words of its own.
    fn num_parts<S: Simd>() -> usize;
    fn load<S: Simd>(simd: S, sums: &[Self::Sum; LANES]) -> Self::Sums<S>;
    fn store<S: Simd>(simd: S, sums: Self::Sums<S>, to: &mut [Self::Sum; LANES]);
    /// A part of a line's words as they are multiplied.
    fn words<S: Simd>(simd: S, line: &Line, part: usize) -> S::Integers;
    /// Adds the products of each of `words` and `word`.
    fn add<S: Simd>(simd: S, sums: Self::Sums<S>, words: S::Integers, word: u32) -> Self::Sums<S>;
}

/// Four integers from -127 to 127 in a word.
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
        6.. if S::HAS_LONE_COLUMNS => 6,
        4.. if S::NUM_SUMS >= 8 || S::HAS_LONE_COLUMNS => 4,
        3 if S::HAS_LONE_COLUMNS => 3,
        2.. if S::NUM_SUMS >= 4 => 2,
        _ => 1,
    }
}

/// Adds to `sums` `[rows, 32]` the products of `left` `[steps][rows][parts][16 words]` and `right` `[steps][2][16 words][16 columns]`.
/// Each sweep asks for its share of the lines ahead.
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

/// Adds to `sums` the products of one row `[steps][parts][16 words]` and several `rights`, side by side: memory answers several streams
/// faster than one, and there are more sums that do not wait for each other.
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

/// The product of the rows of a block.
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
            // A constant number lets the compiler unroll the loop that prefetches them.
            assert_eq!(right.ahead.lines_per_step, STEP_LINES, "lines that are read once are asked for once");
        }
        let rows = Rows { left: LeftSide { lines: left, num_rows: 1 }, row: 0 };
        rows.add_vectors::<S, D, 1, NUM_VECTORS, RIGHTS>(simd, rights, 0, sums);
    }
}

/// Rows of a block, from one on.
#[derive(Clone, Copy)]
struct Rows<'a> {
    left: LeftSide<'a>,
    row: usize,
}

impl Rows<'_> {
    /// All columns at a time.
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

    /// One vector of columns at a time.
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
        // Loops over sums have constant bounds: the compiler keeps sums in registers only if it can unroll all of them.
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
            // Part after part: words of both at once would take registers from the sums.
            for part in 0..num_parts {
                for idx in 0..TILE_SIZE {
                    if VECTORS < NUM_VECTORS && part == 0 {
                        // Of the next step: every other tile, and few rows of a block, are no sequence that caches recognise.
                        simd.prefetch(rights[0].lines.as_ptr().wrapping_add(STEP_LINES + idx));
                        if idx < ROWS * num_parts {
                            simd.prefetch(left.as_ptr().wrapping_add(num_rows * num_parts + idx));
                        }
                    }
                    for (vectors, RightSide { lines: right, ahead }) in vectors.iter_mut().zip(rights) {
                        if part == 0 && first_vector == 0 {
                            // A few at a time: there are few places for lines that are under way.
                            ahead.prefetch(simd, step, 2 * idx..2 * idx + 2);
                        }
                        let mut words = [D::words(simd, &right[idx], part); VECTORS];
                        for (vector, words) in words.iter_mut().enumerate() {
                            *words = D::words(simd, &right[vector * TILE_SIZE + idx], part);
                        }
                        for (row, vectors) in vectors.iter_mut().enumerate() {
                            // Words are read one by one, as they are used: all at once would take registers from the sums.
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

/// A vector's columns of the sums of a row.
#[inline(always)]
fn columns<T>(sums: &[T; BLOCK_COLUMNS], vector: usize) -> &[T; LANES] {
    &sums.as_chunks().0[vector]
}

/// As [`columns`], to write.
#[inline(always)]
fn columns_mut<T>(sums: &mut [T; BLOCK_COLUMNS], vector: usize) -> &mut [T; LANES] {
    &mut sums.as_chunks_mut().0[vector]
}
