//! Multiplication of weights of each format, and conversion of the sums to values.
//!
//! Entry point: [`Multiply`], with an implementation for each [`Format`](super::tiled_weight::Format).

use std::cell::Cell;
use std::thread::LocalKey;

use super::bf16_row;
use super::blocks::{BlockOfX, RowNumbers};
use super::group_tile::{self, GroupedRows};
use super::int4::{self, INT4_STEP_LINES};
use super::level_row::{self, Order};
use super::narrow::{Narrow, Steps};
use super::{level_dots, level_tile, unpacked};
use crate::isa::{LANES, Simd, Tiles};
use crate::lines::{BLOCK_COLUMNS, Block, LeftSide, Line, RightSide, STEP_LINES};
use crate::vector_tile::{self, Bf16Pairs, Int8Quads};

/// The panic message if a single row reaches the code for tiles or for unpacked weights.
const ROW_BY_TILES: &str = "a single row is multiplied with vectors";

thread_local! {
    /// Buffers for sums, which are kept for reuse.
    static F32_SUMS: Cell<Vec<Block<f32>>> = const { Cell::new(Vec::new()) };
    static I32_SUMS: Cell<Vec<Block<i32>>> = const { Cell::new(Vec::new()) };
}

/// The type of a sum: f32 or i32.
pub(super) trait Sum: Copy + Default + 'static {
    /// Returns the buffer of this thread for sums.
    fn kept() -> &'static LocalKey<Cell<Vec<Block<Self>>>>;
}

impl Sum for f32 {
    fn kept() -> &'static LocalKey<Cell<Vec<Block<f32>>>> {
        &F32_SUMS
    }
}

impl Sum for i32 {
    fn kept() -> &'static LocalKey<Cell<Vec<Block<i32>>>> {
        &I32_SUMS
    }
}

/// The multiplication for one format of weights, and the conversion of the sums to values of y.
pub(super) trait Multiply {
    type Sum: Sum;

    /// True if [`Multiply::prepare`] unpacks the lines.
    #[inline(always)]
    fn unpacks(&self) -> bool {
        false
    }

    /// Returns the steps of a panel in the form in which they are multiplied.
    #[inline(always)]
    fn prepare<'a, S: Simd>(&self, _simd: S, steps: Steps<'a>, _scratch: &'a mut Vec<Line>) -> &'a [Line] {
        steps.lines
    }

    /// Returns the start value of the sums of a row.
    #[inline(always)]
    fn start<S: Simd>(&self, _row: RowNumbers) -> Self::Sum {
        Self::Sum::default()
    }

    /// Returns how many times the product of a block reads its lines of weights.
    #[inline(always)]
    fn num_sweeps<S: Simd>(&self) -> usize {
        1
    }

    fn add_product<S: Simd>(&self, simd: S, x: BlockOfX<'_>, steps: RightSide<'_>, sums: &mut Block<Self::Sum>);
    /// Like [`Multiply::add_product`], but for a single row and two panels, interleaved.
    fn add_products_of_row<S: Simd>(
        &self,
        simd: S,
        x: BlockOfX<'_>,
        rights: [RightSide<'_>; 2],
        sums: [&mut Block<Self::Sum>; 2],
    );
    /// Converts the sums of a panel's outputs to values. Integers are multiplied by the scales of their row and of the
    /// outputs.
    fn finish<S: Simd>(
        simd: S,
        sums: &[Self::Sum; BLOCK_COLUMNS],
        scales: (f32, &[Line]),
        values: &mut [f32; BLOCK_COLUMNS],
    );
}

pub(super) enum Bf16<'a> {
    Tiles(&'a Tiles),
    /// A single row, multiplied with vectors but summed in the order of tiles.
    Row,
    Vectors {
        block_rows: usize,
    },
}

pub(super) struct Int8<'a> {
    pub(super) tiles: Option<&'a Tiles>,
    pub(super) block_rows: usize,
}

pub(super) enum Int4<'a> {
    /// Multiplied group by group, with vectors.
    Groups { block_rows: usize },
    /// Unpacked to int8 first, then multiplied as int8.
    Unpacked(Int8<'a>),
}

/// Levels of few bits, multiplied by x, and scales, by which their sums are multiplied.
pub(super) struct Levels<'a> {
    pub(super) from: Narrow,
    pub(super) block_rows: usize,
    pub(super) by: Bf16<'a>,
}

impl Multiply for Bf16<'_> {
    type Sum = f32;

    #[inline(always)]
    fn num_sweeps<S: Simd>(&self) -> usize {
        match self {
            Self::Tiles(_) | Self::Row => 1,
            Self::Vectors { block_rows } => vector_tile::num_sweeps(*block_rows, vector_tile::rows_together::<S>),
        }
    }

    #[inline(always)]
    fn add_product<S: Simd>(&self, simd: S, x: BlockOfX<'_>, right: RightSide<'_>, sums: &mut Block<f32>) {
        match self {
            Self::Tiles(tiles) => tiles.add_bf16_product(x.lines, right.lines, right.ahead, sums),
            Self::Row => bf16_row::add_products(simd, x.lines, [right], [&mut sums.0[0]]),
            Self::Vectors { block_rows } => vector_tile::add_product(
                simd,
                Bf16Pairs,
                LeftSide { lines: x.lines, num_rows: *block_rows },
                right,
                sums,
            ),
        }
    }

    #[inline(always)]
    fn add_products_of_row<S: Simd>(
        &self,
        simd: S,
        x: BlockOfX<'_>,
        rights: [RightSide<'_>; 2],
        sums: [&mut Block<f32>; 2],
    ) {
        match self {
            Self::Tiles(_) => unreachable!("{ROW_BY_TILES}"),
            Self::Row => bf16_row::add_products(simd, x.lines, rights, sums.map(|sums| &mut sums.0[0])),
            Self::Vectors { .. } => vector_tile::add_products_of_row(simd, Bf16Pairs, x.lines, rights, sums),
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(simd: S, sums: &[f32; BLOCK_COLUMNS], _: (f32, &[Line]), values: &mut [f32; BLOCK_COLUMNS]) {
        copy(simd, sums, values);
    }
}

impl Levels<'_> {
    /// The order in which a single row is summed.
    #[inline(always)]
    fn order_of_row(&self) -> Order {
        match self.by {
            Bf16::Row => Order::OfTiles,
            Bf16::Tiles(_) | Bf16::Vectors { .. } => Order::OfInputs,
        }
    }
}

impl Multiply for Levels<'_> {
    type Sum = f32;

    #[inline(always)]
    fn unpacks(&self) -> bool {
        self.block_rows > 1
    }

    #[inline(always)]
    fn num_sweeps<S: Simd>(&self) -> usize {
        self.by.num_sweeps::<S>()
    }

    #[inline(always)]
    fn prepare<'a, S: Simd>(&self, simd: S, steps: Steps<'a>, scratch: &'a mut Vec<Line>) -> &'a [Line] {
        match self.by {
            Bf16::Tiles(_) if S::HAS_PAIRS && self.from == Narrow::Mxfp4 => {
                unpacked::unpack_mxfp4(simd, steps, scratch);
            }
            _ => unpacked::unpack(simd, self.from, steps, scratch),
        }
        scratch
    }

    #[inline(always)]
    fn add_product<S: Simd>(&self, simd: S, x: BlockOfX<'_>, right: RightSide<'_>, sums: &mut Block<f32>) {
        match self.by {
            _ if self.block_rows == 1 => {
                level_row::add_products(simd, (self.from, self.order_of_row()), x, [right], [&mut sums.0[0]]);
            }
            Bf16::Tiles(_) if self.from == Narrow::Mxfp4 => self.by.add_product(simd, x, right, sums),
            Bf16::Tiles(tiles) if S::HAS_PAIRS => {
                level_dots::add_product(simd, (self.from, tiles), (x, self.block_rows), right, sums);
            }
            _ => level_tile::add_product(simd, self.from, (x, self.block_rows), right, sums),
        }
    }

    #[inline(always)]
    fn add_products_of_row<S: Simd>(
        &self,
        simd: S,
        x: BlockOfX<'_>,
        rights: [RightSide<'_>; 2],
        sums: [&mut Block<f32>; 2],
    ) {
        let sums = sums.map(|sums| &mut sums.0[0]);
        level_row::add_products(simd, (self.from, self.order_of_row()), x, rights, sums);
    }

    #[inline(always)]
    fn finish<S: Simd>(simd: S, sums: &[f32; BLOCK_COLUMNS], _: (f32, &[Line]), values: &mut [f32; BLOCK_COLUMNS]) {
        copy(simd, sums, values);
    }
}

impl Multiply for Int8<'_> {
    type Sum = i32;

    #[inline(always)]
    fn start<S: Simd>(&self, row: RowNumbers) -> i32 {
        if self.tiles.is_some() { 0 } else { -S::BYTE_OFFSET * row.sum }
    }

    #[inline(always)]
    fn num_sweeps<S: Simd>(&self) -> usize {
        if self.tiles.is_some() { 1 } else { vector_tile::num_sweeps(self.block_rows, vector_tile::rows_together::<S>) }
    }

    #[inline(always)]
    fn add_product<S: Simd>(&self, simd: S, x: BlockOfX<'_>, right: RightSide<'_>, sums: &mut Block<i32>) {
        match self.tiles {
            Some(tiles) => tiles.add_int8_product(x.lines, right.lines, right.ahead, sums),
            None => {
                let left = LeftSide { lines: x.lines, num_rows: self.block_rows };
                vector_tile::add_product(simd, Int8Quads, left, right, sums);
            }
        }
    }

    #[inline(always)]
    fn add_products_of_row<S: Simd>(
        &self,
        simd: S,
        x: BlockOfX<'_>,
        rights: [RightSide<'_>; 2],
        sums: [&mut Block<i32>; 2],
    ) {
        assert!(self.tiles.is_none(), "{ROW_BY_TILES}");
        vector_tile::add_products_of_row(simd, Int8Quads, x.lines, rights, sums);
    }

    #[inline(always)]
    fn finish<S: Simd>(
        simd: S,
        sums: &[i32; BLOCK_COLUMNS],
        (row_scale, scales): (f32, &[Line]),
        values: &mut [f32; BLOCK_COLUMNS],
    ) {
        let columns = values.as_chunks_mut::<LANES>().0.iter_mut().zip(sums.as_chunks::<LANES>().0);
        for ((values, sums), scales) in columns.zip(scales) {
            let mut factors = [0.0; LANES];
            for (factor, scale) in factors.iter_mut().zip(&scales.0) {
                *factor = f32::from_bits(*scale);
            }
            let factors = simd.mul(simd.splat(row_scale), simd.load(&factors));
            simd.store(simd.mul(simd.to_floats(simd.load_integers(sums)), factors), values);
        }
    }
}

impl Multiply for Int4<'_> {
    type Sum = i32;

    #[inline(always)]
    fn unpacks(&self) -> bool {
        matches!(self, Self::Unpacked(_))
    }

    #[inline(always)]
    fn start<S: Simd>(&self, row: RowNumbers) -> i32 {
        match self {
            Self::Groups { .. } => 0,
            Self::Unpacked(int8) => int8.start::<S>(row),
        }
    }

    #[inline(always)]
    fn num_sweeps<S: Simd>(&self) -> usize {
        match self {
            Self::Groups { block_rows } => group_tile::num_sweeps::<S>(*block_rows),
            Self::Unpacked(int8) => int8.num_sweeps::<S>(),
        }
    }

    #[inline(always)]
    fn prepare<'a, S: Simd>(&self, _simd: S, steps: Steps<'a>, scratch: &'a mut Vec<Line>) -> &'a [Line] {
        if matches!(self, Self::Groups { .. }) {
            return steps.lines;
        }
        let num_steps = steps.lines.len() / INT4_STEP_LINES;
        scratch.resize(num_steps * STEP_LINES, Line([0; 16]));
        for (step, to) in steps.lines.chunks_exact(INT4_STEP_LINES).zip(scratch.chunks_exact_mut(STEP_LINES)) {
            int4::unpack_step(step, to);
        }
        scratch
    }

    #[inline(always)]
    fn add_product<S: Simd>(&self, simd: S, x: BlockOfX<'_>, right: RightSide<'_>, sums: &mut Block<i32>) {
        match self {
            Self::Groups { block_rows } => {
                let rows = GroupedRows { lines: x.lines, starts: x.starts, num_rows: *block_rows };
                group_tile::add_product(simd, rows, right, sums);
            }
            Self::Unpacked(int8) => int8.add_product(simd, x, right, sums),
        }
    }

    #[inline(always)]
    fn add_products_of_row<S: Simd>(
        &self,
        simd: S,
        x: BlockOfX<'_>,
        rights: [RightSide<'_>; 2],
        sums: [&mut Block<i32>; 2],
    ) {
        match self {
            Self::Groups { .. } => {
                let row = GroupedRows { lines: x.lines, starts: x.starts, num_rows: 1 };
                group_tile::add_products_of_row(simd, row, rights, sums);
            }
            Self::Unpacked(_) => unreachable!("{ROW_BY_TILES}"),
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(
        simd: S,
        sums: &[i32; BLOCK_COLUMNS],
        scales: (f32, &[Line]),
        values: &mut [f32; BLOCK_COLUMNS],
    ) {
        Int8::finish(simd, sums, scales, values);
    }
}

#[inline(always)]
pub(super) fn copy<S: Simd>(simd: S, from: &[f32; BLOCK_COLUMNS], to: &mut [f32; BLOCK_COLUMNS]) {
    for (to, from) in to.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
        simd.store(simd.load(from), to);
    }
}
