//! Linear layers by products of blocks: 32 rows of x, rounded to the numbers of the weight, times panels of 32 outputs.
//!
//! Door: [`linear`]. The inputs come in passes whose part of x stays in the second-level cache. bf16 is multiplied by the tiles of
//! AMX, a single row there by `bf16_row`, or by `vector_tile`, and summed in f32 in an order that depends on nothing but the instruction
//! set and the number of inputs; int8 by tiles or by `vector_tile`, exactly.

use std::cell::Cell;

use rayon::prelude::*;

use super::bf16_row;
use super::blocks::{BlockOfX, Blocks, RowNumbers};
use super::group_tile::{self, GroupedRows};
use super::int4::{self, INT4_STEP_LINES};
use super::packed_weight::PANEL_OUTPUTS;
use super::parts::{self, Part};
use super::tiled_weight::{Format, TiledWeight, scale};
use super::vector_tile::{self, Bf16Pairs, Int8Quads};
use super::{LINES_AHEAD, MIN_PARALLEL_MULTIPLY_ADDS, TASKS_PER_THREAD};
use crate::isa::{Isa, Kernel, Simd, Tiles};
use crate::lines::{Ahead, BLOCK_COLUMNS, BLOCK_ROWS, Block, Line, STEP_LINES};

/// Blocks of a part, and steps of a pass: together 1 MiB of x, half of a second-level cache.
const PART_BLOCKS: usize = 8;
const PASS_STEPS: usize = 64;

thread_local! {
    /// Memory for steps that are unpacked before they are multiplied, kept.
    static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// The product of some blocks and panels.
struct PartProduct<'a, 'y> {
    isa: Isa,
    tiles: Option<&'a Tiles>,
    blocks: &'a Blocks,
    weight: &'a TiledWeight,
    bias: Option<&'a [f32]>,
    part: Part<'y>,
}

/// How lines are multiplied, and what becomes of the sums.
trait Multiply {
    type Sum: Copy + Default;

    /// The steps of a panel as they are multiplied.
    #[inline(always)]
    fn prepare<'a>(&self, steps: &'a [Line], _scratch: &'a mut Vec<Line>) -> &'a [Line] {
        steps
    }

    /// What the sums of a row begin with.
    #[inline(always)]
    fn start<S: Simd>(&self, _row: RowNumbers) -> Self::Sum {
        Self::Sum::default()
    }

    /// How often the product of a block reads its lines of weights.
    #[inline(always)]
    fn num_sweeps<S: Simd>(&self) -> usize {
        1
    }

    fn add_product<S: Simd>(&self, simd: S, x: BlockOfX<'_>, steps: (&[Line], Ahead), sums: &mut Block<Self::Sum>);
    /// A sum that waits in y for the next pass.
    fn to_waiting(sum: Self::Sum) -> f32;
    fn of_waiting(value: f32) -> Self::Sum;
    /// The sum of an output, with the scales of its row and of itself.
    fn finish(sum: Self::Sum, row_scale: f32, scales: &[Line], output: usize) -> f32;
}

enum Bf16<'a> {
    Tiles(&'a Tiles),
    /// As tiles do.
    Row,
    Vectors {
        block_rows: usize,
    },
}

struct Int8<'a> {
    tiles: Option<&'a Tiles>,
    block_rows: usize,
}

/// Tiles multiply what becomes integers of 8 bits before.
struct Int4<'a> {
    tiles: Option<&'a Tiles>,
    block_rows: usize,
}

/// `y = x · Wᵀ + bias`, with x `[m, inputs]` and y `[m, outputs]`.
pub(super) fn linear(isa: Isa, x: &[f32], weight: &TiledWeight, bias: Option<&[f32]>, y: &mut [f32]) {
    let [outputs, inputs] = weight.sizes();
    let num_multiply_adds = y.len() * inputs;
    let is_small = num_multiply_adds < MIN_PARALLEL_MULTIPLY_ADDS;
    let num_tasks = if is_small { 1 } else { rayon::current_num_threads() * TASKS_PER_THREAD };
    let blocks = Blocks::new(isa, weight.format(), (x, inputs), is_small);
    let group_rows = y.chunks(PART_BLOCKS * blocks.block_rows() * outputs).map(|rows| rows.len() / outputs);
    let group_rows: Vec<usize> = group_rows.collect();
    let group_parts = num_tasks.div_ceil(group_rows.len().max(1));
    let part_panels = outputs.div_ceil(PANEL_OUTPUTS).div_ceil(group_parts);
    // A single part stays on the calling thread.
    parts::cut(y, outputs, part_panels, group_rows).into_par_iter().for_each(|part| {
        let blocks = &blocks;
        let multiply = |tiles: Option<&Tiles>| isa.run(PartProduct { isa, tiles, blocks, weight, bias, part });
        // A single row leaves tiles almost empty, and they fetch weights more slowly than vectors do.
        if blocks.block_rows() == 1 { multiply(None) } else { isa.with_tiles(blocks.block_rows(), multiply) }
    });
    blocks.recycle();
}

impl Kernel for PartProduct<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let tiles = self.tiles;
        let block_rows = self.blocks.block_rows();
        match self.weight.format() {
            Format::Bf16 => {
                let by = match tiles {
                    Some(tiles) => Bf16::Tiles(tiles),
                    None if self.isa.has_tiles() => Bf16::Row,
                    None => Bf16::Vectors { block_rows },
                };
                self.multiply(simd, &by);
            }
            Format::Int8 => self.multiply(simd, &Int8 { tiles, block_rows }),
            Format::Int4 => self.multiply(simd, &Int4 { tiles, block_rows }),
        }
    }
}

impl PartProduct<'_, '_> {
    #[inline(always)]
    fn multiply<S: Simd, M: Multiply>(mut self, simd: S, by: &M) {
        let num_steps = self.weight.num_steps();
        let num_panels = self.part.y_rows[0].len().div_ceil(PANEL_OUTPUTS);
        let mut scratch = SCRATCH.take();
        // A single row is small enough to stay there whole.
        let pass_steps = if self.blocks.block_rows() == 1 { num_steps } else { PASS_STEPS };
        for first_step in (0..num_steps).step_by(pass_steps) {
            let steps = (first_step, (first_step + pass_steps).min(num_steps));
            for panel in 0..num_panels {
                self.multiply_panel(simd, by, (panel, steps), &mut scratch);
            }
        }
        SCRATCH.set(scratch);
    }

    /// All blocks times some steps of one panel.
    #[inline(always)]
    fn multiply_panel<S: Simd, M: Multiply>(
        &mut self,
        simd: S,
        by: &M,
        (panel, (first, end)): (usize, (usize, usize)),
        scratch: &mut Vec<Line>,
    ) {
        let Self { blocks, weight, bias, part, .. } = self;
        let (scales, steps) = weight.panel(part.first_panel + panel);
        let step_lines = weight.format().step_lines();
        let packed = &steps[first * step_lines..end * step_lines];
        let right = by.prepare(packed, scratch);
        let is_last = end == weight.num_steps();
        let bias = bias.map(|bias| &bias[(part.first_panel + panel) * PANEL_OUTPUTS..]);
        let block_rows = blocks.block_rows();
        let num_blocks = part.y_rows.len().div_ceil(block_rows);
        // The next panel in equal shares or, where lines are read once, some close ahead.
        let lines_per_step = step_lines.div_ceil(num_blocks);
        let is_read_once = num_blocks * by.num_sweeps::<S>() == 1;
        let distance = if is_read_once { LINES_AHEAD } else { weight.panel_len() };
        let ahead = |block| {
            let share = block * (end - first) * lines_per_step;
            Ahead { first: packed.as_ptr().wrapping_add(distance + share), lines_per_step }
        };
        let mut sums = Block([[M::Sum::default(); BLOCK_COLUMNS]; BLOCK_ROWS]);
        for (idx, y_rows) in part.y_rows.chunks_mut(block_rows).enumerate() {
            let x = blocks.block(part.group * PART_BLOCKS + idx, first..end);
            for ((sums, y), row) in sums.0.iter_mut().zip(&*y_rows).zip(x.rows) {
                *sums = if first == 0 {
                    [by.start::<S>(*row); BLOCK_COLUMNS]
                } else {
                    waiting::<M>(&y[panel * PANEL_OUTPUTS..])
                };
            }
            by.add_product(simd, x, (right, ahead(idx)), &mut sums);
            for ((sums, y), row) in sums.0.iter().zip(y_rows).zip(x.rows) {
                let mut values = [0.0; BLOCK_COLUMNS];
                for (output, (value, sum)) in values.iter_mut().zip(sums).enumerate() {
                    *value = if is_last { M::finish(*sum, row.scale, scales, output) } else { M::to_waiting(*sum) };
                }
                store(&values, bias.filter(|_| is_last), &mut y[panel * PANEL_OUTPUTS..]);
            }
        }
    }
}

impl Multiply for Bf16<'_> {
    type Sum = f32;

    #[inline(always)]
    fn num_sweeps<S: Simd>(&self) -> usize {
        match self {
            Self::Tiles(_) | Self::Row => 1,
            Self::Vectors { block_rows } => vector_tile::num_sweeps::<S>(*block_rows),
        }
    }

    #[inline(always)]
    fn add_product<S: Simd>(&self, simd: S, x: BlockOfX<'_>, (right, ahead): (&[Line], Ahead), sums: &mut Block<f32>) {
        let left = x.lines;
        match self {
            Self::Tiles(tiles) => tiles.add_bf16_product(left, right, ahead, sums),
            Self::Row => bf16_row::add_product(simd, left, right, &mut sums.0[0]),
            Self::Vectors { block_rows } => {
                vector_tile::add_product(simd, Bf16Pairs, (left, *block_rows), (right, ahead), sums)
            }
        }
    }

    #[inline(always)]
    fn to_waiting(sum: f32) -> f32 {
        sum
    }

    #[inline(always)]
    fn of_waiting(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn finish(sum: f32, _row_scale: f32, _scales: &[Line], _output: usize) -> f32 {
        sum
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
        if self.tiles.is_some() { 1 } else { vector_tile::num_sweeps::<S>(self.block_rows) }
    }

    #[inline(always)]
    fn add_product<S: Simd>(&self, simd: S, x: BlockOfX<'_>, (right, ahead): (&[Line], Ahead), sums: &mut Block<i32>) {
        match self.tiles {
            Some(tiles) => tiles.add_int8_product(x.lines, right, ahead, sums),
            None => vector_tile::add_product(simd, Int8Quads, (x.lines, self.block_rows), (right, ahead), sums),
        }
    }

    #[inline(always)]
    fn to_waiting(sum: i32) -> f32 {
        f32::from_bits(sum.cast_unsigned())
    }

    #[inline(always)]
    fn of_waiting(value: f32) -> i32 {
        value.to_bits().cast_signed()
    }

    #[inline(always)]
    fn finish(sum: i32, row_scale: f32, scales: &[Line], output: usize) -> f32 {
        sum as f32 * (row_scale * scale(scales, output))
    }
}

impl Multiply for Int4<'_> {
    type Sum = i32;

    #[inline(always)]
    fn num_sweeps<S: Simd>(&self) -> usize {
        if self.tiles.is_some() { 1 } else { group_tile::num_sweeps::<S>(self.block_rows) }
    }

    #[inline(always)]
    fn prepare<'a>(&self, steps: &'a [Line], scratch: &'a mut Vec<Line>) -> &'a [Line] {
        if self.tiles.is_none() {
            return steps;
        }
        let num_steps = steps.len() / INT4_STEP_LINES;
        scratch.resize(num_steps * STEP_LINES, Line([0; 16]));
        for (step, to) in steps.chunks_exact(INT4_STEP_LINES).zip(scratch.chunks_exact_mut(STEP_LINES)) {
            int4::unpack_step(step, to);
        }
        scratch
    }

    #[inline(always)]
    fn add_product<S: Simd>(&self, simd: S, x: BlockOfX<'_>, (right, ahead): (&[Line], Ahead), sums: &mut Block<i32>) {
        match self.tiles {
            Some(tiles) => tiles.add_int8_product(x.lines, right, ahead, sums),
            None => {
                let rows = GroupedRows { lines: x.lines, starts: x.starts, num_rows: self.block_rows };
                group_tile::add_product(simd, rows, (right, ahead), sums);
            }
        }
    }

    #[inline(always)]
    fn to_waiting(sum: i32) -> f32 {
        Int8::to_waiting(sum)
    }

    #[inline(always)]
    fn of_waiting(value: f32) -> i32 {
        Int8::of_waiting(value)
    }

    #[inline(always)]
    fn finish(sum: i32, row_scale: f32, scales: &[Line], output: usize) -> f32 {
        Int8::finish(sum, row_scale, scales, output)
    }
}

#[inline(always)]
fn waiting<M: Multiply>(y: &[f32]) -> [M::Sum; BLOCK_COLUMNS] {
    let mut sums = [M::Sum::default(); BLOCK_COLUMNS];
    sums.iter_mut().zip(y).for_each(|(sum, value)| *sum = M::of_waiting(*value));
    sums
}

#[inline(always)]
fn store(values: &[f32; BLOCK_COLUMNS], bias: Option<&[f32]>, y: &mut [f32]) {
    match y.first_chunk_mut() {
        Some(y) => *y = *values,
        None => y.copy_from_slice(&values[..y.len()]),
    }
    if let Some(bias) = bias {
        y.iter_mut().zip(bias).take(BLOCK_COLUMNS).for_each(|(y, bias)| *y += bias);
    }
}
