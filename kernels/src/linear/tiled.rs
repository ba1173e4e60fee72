//! Linear layers as products of blocks: up to 32 rows of x, as bf16 or integers, times panels of 32 outputs.
//!
//! Entry points: [`linear`], [`gated_mlp`]. If there are several blocks, the inputs are divided into passes. What a
//! pass reads of x stays in the second-level cache, and the sums are kept from pass to pass. If there are many blocks,
//! or the weights are int4 or narrow, a panel is divided into chunks of a few steps. A chunk stays in the first-level
//! cache while all blocks use it. With AVX2, whose products prefetch the rows of the next step, passes are longer, and
//! only unpacked int4 weights are divided into chunks.
//!
//! AMX tiles multiply bf16 weights, except with a single row, which `bf16_row` multiplies. Without tiles `vector_tile`
//! multiplies them. The sums are f32, in an order that depends only on the instruction set and the number of inputs.
//! With narrow weights, `level_row` multiplies a single row; `level_dots` multiplies several on tiles, and `level_tile`
//! without tiles. Products with int8 and unpacked int4 weights are those of tiles or of `vector_tile`, and products
//! with other int4 weights those of `group_tile`; their sums are exact (`multiply`). A single row takes two panels at a
//! time.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use rayon::prelude::*;

use super::blocks::Blocks;
use super::multiply::{Bf16, Int4, Int8, Levels, Multiply, Sum, copy};
use super::narrow::Steps;
use super::packed_weight::{PANEL_OUTPUTS, Panels};
use super::parts::{self, PanelCut, Part};
use super::tiled_weight::{Format, TiledWeight};
use super::{LINES_AHEAD, Layer, MIN_PARALLEL_MULTIPLY_ADDS, TASKS_PER_THREAD};
use crate::activation::Activation;
use crate::isa::{Isa, Kernel, LANES, Simd, Tiles};
use crate::lines::{Ahead, BLOCK_COLUMNS, BLOCK_ROWS, Block, Line, RightSide};
use crate::scratch::Scratch;

/// The number of lines of x in a pass, per block of a full part.
const PASS_BLOCK_LINES: usize = 1 << 10;
/// The same as [`PASS_BLOCK_LINES`], if products prefetch the rows of the next step. The third-level cache is then fast
/// enough for x.
const ASKED_PASS_BLOCK_LINES: usize = 1 << 12;
/// The number of steps of a chunk; half as many if a row of x has two lines per step. A chunk is at most 16 KiB of a
/// panel, which stay in the first-level cache while all blocks use them, and at most 16 KiB of a block.
const CHUNK_STEPS: usize = 8;
/// The minimum number of blocks for which chunks of bf16 and int8 weights pay. Fewer blocks do not use a chunk often
/// enough to make up for storing their sums after each chunk.
const MIN_CHUNKED_BLOCKS: usize = 8;
/// The maximum number of rows that vectors multiply with int4 weights although there are tiles. Vectors finish these
/// rows before the weights would have been unpacked for tiles.
const MAX_INT4_VECTOR_ROWS: usize = 8;
/// The maximum number of panels of a part if their sums are kept from pass to pass: at most 2 MiB of sums.
const MAX_WAITING_PANELS: usize = 32;

thread_local! {
    /// The buffer for unpacked steps, which is kept for reuse.
    static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Returns the maximum number of blocks of a part. With [`PASS_BLOCK_LINES`] each, they take half of the second-level
/// cache, which has 2 MiB where there are tiles and often 1 MiB elsewhere.
#[inline(always)]
fn part_blocks(isa: Isa) -> usize {
    if isa.has_tiles() { 16 } else { 8 }
}

/// The destination of the values of a part.
trait Destination {
    /// Returns the number of blocks of the part, of `block_rows` rows each.
    fn num_blocks(&self, block_rows: usize) -> usize;
    /// Stores the values of a panel and a block of the part.
    fn take<S: Simd>(&mut self, simd: S, place: (usize, usize), block_rows: usize, values: &Block<f32>);
    /// Prefetches the destination of the values of a panel and a block.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, _simd: S, _place: (usize, usize), _block_rows: usize) {}
}

/// The operation on the sums of a panel before they are stored.
#[derive(Clone, Copy)]
enum Finish<'a> {
    Bias(&'a [f32]),
    Nothing,
    /// Gated network: y = activation(x · W0ᵀ) · (x · W1ᵀ).
    Gate(Activation),
}

/// The products of some blocks and the same panels of each weight.
struct PartProduct<'a, D, const WEIGHTS: usize> {
    isa: Isa,
    tiles: Option<&'a Tiles>,
    blocks: &'a Blocks,
    weights: [&'a TiledWeight; WEIGHTS],
    finish: Finish<'a>,
    first_block: usize,
    first_panel: usize,
    num_panels: usize,
    destination: D,
}

/// Computes `y = x · Wᵀ + bias` for each layer, with x `[m, inputs]` and y `[m, outputs]`. All weights must be tiled
/// and of one format.
pub(super) fn linear(isa: Isa, (x, inputs): (&[f32], usize), layers: Vec<Layer<'_>>) {
    let num_rows = x.len() / inputs;
    let num_outputs = layers.iter().map(|layer| layer.weight.num_outputs()).sum();
    let tiled = layers.into_iter().map(|Layer { weight, bias, y }| match weight.panels() {
        Panels::Tiled(weight) => (weight, bias, y),
        Panels::F32(_) | Panels::Bf16(_) | Panels::F16(_) => {
            unreachable!("other weights are multiplied by `tile`")
        }
    });
    let tiled: Vec<_> = tiled.collect();
    let Some((first, ..)) = tiled.first() else { return };
    let is_small = Cut::new((isa, num_rows), [first], num_outputs).is_small;
    let blocks = Blocks::new(isa, first.format(), (x, inputs), is_small);
    let mut work = Vec::new();
    for (weight, bias, y) in tiled {
        let [outputs, _] = weight.sizes();
        let cut = Cut::new((isa, num_rows), [weight], num_outputs);
        let finish = bias.map_or(Finish::Nothing, Finish::Bias);
        let parts = parts::cut(y, outputs, cut.panels(PANEL_OUTPUTS), cut.groups(1));
        work.extend(parts.into_iter().map(|part| Work { weights: [weight], finish, part }));
    }
    multiply(isa, &blocks, work);
    blocks.recycle();
}

/// Computes `y = (f(x · gateᵀ) * (x · upᵀ)) · downᵀ`, with x `[m, inputs]` and y `[m, outputs]`. Gate and up must have
/// the same format and size.
pub(super) fn gated_mlp(
    isa: Isa,
    x: &[f32],
    [gate, up, down]: [&TiledWeight; 3],
    activation: Activation,
    y: &mut [f32],
) {
    let [outputs, inputs] = gate.sizes();
    let num_rows = x.len() / inputs;
    let cut = Cut::new((isa, num_rows), [gate, up], outputs);
    let blocks = Blocks::new(isa, gate.format(), (x, inputs), cut.is_small);
    let (weights, finish) = ([gate, up], Finish::Gate(activation));
    let between = if down.format().takes_bf16(isa) && !down.format().takes_groups(isa) {
        // The outputs of a panel are the inputs of one step.
        let mut between = Blocks::unwritten((Format::Bf16, 1), num_rows, outputs);
        let block_rows = between.block_rows();
        let (lines, block_len) = between.lines_mut();
        let parts = parts::cut(lines, block_len, cut.panels(block_rows), cut.groups(block_rows));
        multiply(isa, &blocks, parts.into_iter().map(|part| Work { weights, finish, part }).collect());
        between
    } else {
        let mut between = Scratch::of(num_rows * outputs); // [m, outputs]
        let parts = parts::cut(&mut between, outputs, cut.panels(PANEL_OUTPUTS), cut.groups(1));
        multiply(isa, &blocks, parts.into_iter().map(|part| Work { weights, finish, part }).collect());
        Blocks::new(isa, down.format(), (&between, outputs), cut.is_small)
    };
    blocks.recycle();
    let [outputs, _] = down.sizes();
    let cut = Cut::new((isa, num_rows), [down], outputs);
    let parts = parts::cut(y, outputs, cut.panels(PANEL_OUTPUTS), cut.groups(1));
    let (weights, finish) = ([down], Finish::Nothing);
    multiply(isa, &between, parts.into_iter().map(|part| Work { weights, finish, part }).collect());
    between.recycle();
}

/// The division of rows and panels into parts.
struct Cut {
    num_rows: usize,
    block_rows: usize,
    part_blocks: usize,
    /// True if waking other threads costs more time than it saves.
    is_small: bool,
    num_panels: usize,
    part_panels: usize,
}

impl Cut {
    /// Divides `num_rows` rows and the outputs of `weights` into parts. `all_outputs` is the total number of outputs of
    /// all layers that are computed together.
    fn new<const WEIGHTS: usize>(
        (isa, num_rows): (Isa, usize),
        weights: [&TiledWeight; WEIGHTS],
        all_outputs: usize,
    ) -> Self {
        let [outputs, inputs] = weights[0].sizes();
        let is_small = WEIGHTS * num_rows * all_outputs * inputs < MIN_PARALLEL_MULTIPLY_ADDS;
        let all_tasks = if is_small { 1 } else { rayon::current_num_threads() * TASKS_PER_THREAD };
        let num_tasks = (all_tasks * outputs).div_ceil(all_outputs);
        let (block_rows, part_blocks) = (Blocks::rows_of_blocks(num_rows), part_blocks(isa));
        let num_groups = num_rows.div_ceil(part_blocks * block_rows).max(1);
        let num_panels = outputs.div_ceil(PANEL_OUTPUTS);
        let part_panels = num_panels.div_ceil(num_tasks.div_ceil(num_groups));
        // A single block has only one pass, so no sums are kept.
        let max_panels = if num_rows > block_rows { MAX_WAITING_PANELS / WEIGHTS } else { part_panels };
        Self { num_rows, block_rows, part_blocks, is_small, num_panels, part_panels: part_panels.min(max_panels) }
    }

    /// Returns the division of a row into parts, if each panel has `panel_len` elements of the row.
    fn panels(&self, panel_len: usize) -> PanelCut {
        PanelCut { panel_len, num_panels: self.num_panels, part_panels: self.part_panels }
    }

    /// Returns the length of each group of rows, in units of `row_rows` rows.
    fn groups(&self, row_rows: usize) -> impl Iterator<Item = usize> {
        let group_rows = self.part_blocks * self.block_rows;
        let num_rows = self.num_rows;
        (0..num_rows).step_by(group_rows).map(move |first| group_rows.min(num_rows - first).div_ceil(row_rows))
    }
}

/// A part of the outputs of some weights, and the operation on its sums.
struct Work<'a, 'y, T, const WEIGHTS: usize> {
    weights: [&'a TiledWeight; WEIGHTS],
    finish: Finish<'a>,
    part: Part<'y, T>,
}

/// Computes parts whose weights are all of one format.
fn multiply<T: Send, const WEIGHTS: usize>(isa: Isa, blocks: &Blocks, work: Vec<Work<'_, '_, T, WEIGHTS>>)
where
    for<'y> Rows<'y, T>: Destination,
{
    let Some(first) = work.first() else { return };
    // A single row leaves tiles almost empty, and tiles load weights more slowly than vectors do. Tiles also need int4
    // weights to be unpacked first.
    let max_vector_rows = if first.weights[0].format() == Format::Int4 { MAX_INT4_VECTOR_ROWS } else { 1 };
    // A single part stays on the calling thread.
    work.into_par_iter().with_max_len(1).for_each(|Work { weights, finish, part }| {
        let Part { group, first_panel, num_panels, rows } = part;
        let (destination, first_block) = (Rows(rows), group * part_blocks(isa));
        let multiply = |tiles: Option<&Tiles>| {
            isa.run(PartProduct {
                isa,
                tiles,
                blocks,
                weights,
                finish,
                first_block,
                first_panel,
                num_panels,
                destination,
            });
        };
        if blocks.block_rows() <= max_vector_rows {
            multiply(None)
        } else {
            isa.with_tiles([blocks.block_rows(), weights[0].format().product_words()], multiply)
        }
    });
}

/// The slices of a part: `[rows][outputs]` of f32, or `[blocks][panels][rows of a block]` of bf16 lines.
struct Rows<'y, T>(Vec<&'y mut [T]>);

impl Destination for Rows<'_, f32> {
    fn num_blocks(&self, block_rows: usize) -> usize {
        self.0.len().div_ceil(block_rows)
    }

    #[inline(always)]
    fn take<S: Simd>(&mut self, simd: S, (panel, block): (usize, usize), block_rows: usize, values: &Block<f32>) {
        for (values, y) in values.0.iter().zip(&mut self.0[block * block_rows..]).take(block_rows) {
            let y = &mut y[panel * PANEL_OUTPUTS..];
            match y.first_chunk_mut() {
                Some(y) => copy(simd, values, y),
                None => y.copy_from_slice(&values[..y.len()]),
            }
        }
    }

    #[inline(always)]
    fn prefetch<S: Simd>(&self, simd: S, (panel, block): (usize, usize), block_rows: usize) {
        for y in self.0.iter().skip(block * block_rows).take(block_rows) {
            let first = y.as_ptr().wrapping_add(panel * PANEL_OUTPUTS);
            simd.prefetch(first.cast());
            simd.prefetch(first.wrapping_add(LANES).cast());
        }
    }
}

impl Destination for Rows<'_, Line> {
    fn num_blocks(&self, _block_rows: usize) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn take<S: Simd>(&mut self, simd: S, (panel, block): (usize, usize), block_rows: usize, values: &Block<f32>) {
        let lines = &mut self.0[block][panel * block_rows..][..block_rows];
        for (line, values) in lines.iter_mut().zip(&values.0) {
            simd.round_to_bf16(values, line);
        }
    }
}

impl<D: Destination, const WEIGHTS: usize> Kernel for PartProduct<'_, D, WEIGHTS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // `HAS_PAIRS` is a constant, so that the compiler removes the code for tiles from instruction sets that have
        // none.
        let tiles = if S::HAS_PAIRS { self.tiles } else { None };
        let block_rows = self.blocks.block_rows();
        let num_rows = self.destination.num_blocks(block_rows) * block_rows;
        match self.weights[0].format() {
            Format::Bf16 if !S::HAS_PAIRS => unreachable!("weights are laid out for the instruction set"),
            format @ (Format::Bf16 | Format::Narrow(_)) => {
                let by = match tiles {
                    Some(tiles) => Bf16::Tiles(tiles),
                    None if S::HAS_PAIRS && self.isa.has_tiles() => Bf16::Row,
                    None => Bf16::Vectors { block_rows },
                };
                match format {
                    Format::Narrow(from) => self.multiply(simd, &Levels { from, block_rows, by }),
                    _ => self.multiply(simd, &by),
                }
            }
            Format::Int8 => self.multiply(simd, &Int8 { tiles, block_rows }),
            Format::Int4 if tiles.is_some() || num_rows >= S::MIN_UNPACKED_ROWS => {
                self.multiply(simd, &Int4::Unpacked(Int8 { tiles, block_rows }));
            }
            Format::Int4 => self.multiply(simd, &Int4::Groups { block_rows }),
        }
    }
}

impl<D: Destination, const WEIGHTS: usize> PartProduct<'_, D, WEIGHTS> {
    #[inline(always)]
    fn multiply<S: Simd, M: Multiply>(mut self, simd: S, by: &M) {
        if self.blocks.block_rows() == 1 && !by.unpacks() {
            return self.multiply_row(simd, by);
        }
        let num_steps = self.weights[0].num_steps();
        let num_panels = self.num_panels;
        let num_blocks = self.destination.num_blocks(self.blocks.block_rows());
        // A single block usually fits into the second-level cache.
        let pass_steps = if num_blocks == 1 {
            num_steps
        } else {
            let block_lines = if S::HAS_LONE_COLUMNS { ASKED_PASS_BLOCK_LINES } else { PASS_BLOCK_LINES };
            part_blocks(self.isa) * block_lines / (num_blocks * self.blocks.block_rows() * self.blocks.num_parts())
        };
        // With several passes, the sums of all panels are kept for the next pass.
        let num_waiting = if num_steps <= pass_steps { 1 } else { num_panels };
        let mut kept = M::Sum::kept().take();
        let num_sums = num_waiting * WEIGHTS * num_blocks;
        kept.resize(num_sums.max(kept.len()), Block([[M::Sum::default(); BLOCK_COLUMNS]; BLOCK_ROWS]));
        let sums = &mut kept[..num_sums]; // [panels][weights][blocks]
        let mut scratch = SCRATCH.take();
        let mut values = [const { Block([[0.0; BLOCK_COLUMNS]; BLOCK_ROWS]) }; WEIGHTS];
        for first_step in (0..num_steps).step_by(pass_steps) {
            let steps = first_step..(first_step + pass_steps).min(num_steps);
            for panel in 0..num_panels {
                let sums = &mut sums[panel % num_waiting * WEIGHTS * num_blocks..][..WEIGHTS * num_blocks];
                for (weight, sums) in self.weights.into_iter().zip(sums.chunks_exact_mut(num_blocks)) {
                    if first_step == 0 {
                        self.start::<S, M>(by, sums);
                    }
                    self.add_steps(simd, by, (weight, panel, steps.clone()), (sums, &mut scratch));
                }
                if steps.end == num_steps {
                    self.finish::<S, M>(simd, panel, sums, &mut values);
                }
            }
        }
        SCRATCH.set(scratch);
        M::Sum::kept().set(kept);
    }

    /// Multiplies a single row with two panels interleaved, because memory delivers two streams faster than one. The
    /// two panels belong to the two weights or, if there is one weight, to the two halves of the part.
    #[inline(always)]
    fn multiply_row<S: Simd, M: Multiply>(mut self, simd: S, by: &M) {
        let [first_weight, second_weight] = [self.weights[0], self.weights[WEIGHTS - 1]];
        let first_panels = if WEIGHTS == 1 { self.num_panels.div_ceil(2) } else { self.num_panels };
        let x = self.blocks.block(self.first_block, 0..first_weight.num_steps());
        let mut sums = [(); 2].map(|()| Block([[M::Sum::default(); BLOCK_COLUMNS]; BLOCK_ROWS]));
        let mut values = [const { Block([[0.0; BLOCK_COLUMNS]; BLOCK_ROWS]) }; WEIGHTS];
        for panel in 0..first_panels {
            for sums in &mut sums {
                self.start::<S, M>(by, std::slice::from_mut(sums));
            }
            let first = self.lines_of_row(first_weight, panel);
            let other = if WEIGHTS == 1 { first_panels + panel } else { panel };
            if other == self.num_panels {
                by.add_product(simd, x, first, &mut sums[0]);
                self.finish::<S, M>(simd, panel, &sums[..1], &mut values);
                continue;
            }
            let second = self.lines_of_row(second_weight, other);
            by.add_products_of_row(simd, x, [first, second], sums.each_mut());
            for (panel, sums) in [panel, other].into_iter().zip(sums.chunks_exact(WEIGHTS)) {
                self.finish::<S, M>(simd, panel, sums, &mut values);
            }
        }
    }

    /// Returns the steps of a weight's panel, for a product that reads each line once.
    #[inline(always)]
    fn lines_of_row<'w>(&self, weight: &'w TiledWeight, panel: usize) -> RightSide<'w> {
        let lines = weight.panel_of_row(self.first_panel + panel);
        let first = lines.as_ptr().wrapping_add(LINES_AHEAD);
        RightSide { lines, ahead: Ahead { first, lines_per_step: weight.format().step_lines() } }
    }

    /// Sets the sums of all blocks to their start values.
    #[inline(always)]
    fn start<S: Simd, M: Multiply>(&self, by: &M, sums: &mut [Block<M::Sum>]) {
        for (idx, sums) in sums.iter_mut().enumerate() {
            let rows = self.blocks.rows(self.first_block + idx);
            for (sums, row) in sums.0.iter_mut().zip(rows) {
                // The fence makes the compiler process one row after another. It would otherwise combine rows and
                // scatter the stores column by column.
                compiler_fence(Ordering::SeqCst);
                *sums = [by.start::<S>(*row); BLOCK_COLUMNS];
            }
        }
    }

    /// Adds the products of all blocks and some steps of a weight's panel.
    #[inline(always)]
    fn add_steps<S: Simd, M: Multiply>(
        &self,
        simd: S,
        by: &M,
        (weight, panel, steps): (&TiledWeight, usize, Range<usize>),
        (sums, scratch): (&mut [Block<M::Sum>], &mut Vec<Line>),
    ) {
        let (heads, lines) = weight.panel(self.first_panel + panel);
        let step_lines = weight.format().step_lines();
        let num_blocks = sums.len();
        // Prefetch the next panel in equal shares or, where lines are read once, the lines that are `LINES_AHEAD` lines
        // further on.
        let lines_per_step = step_lines.div_ceil(num_blocks);
        let is_read_once = num_blocks * by.num_sweeps::<S>() == 1;
        let distance = if is_read_once { LINES_AHEAD } else { weight.panel_len() };
        // A chunk of the panel stays in the first-level cache while all blocks use it. Where products prefetch the rows
        // of the next step, storing the sums takes longer than chunks save, except for unpacked lines.
        let is_chunked = if S::HAS_LONE_COLUMNS {
            by.unpacks()
        } else {
            num_blocks >= MIN_CHUNKED_BLOCKS || weight.format() == Format::Int4 || by.unpacks()
        };
        let chunk_steps = if is_chunked { CHUNK_STEPS / self.blocks.num_parts() } else { steps.len() };
        for first in steps.clone().step_by(chunk_steps) {
            let chunk = first..(first + chunk_steps).min(steps.end);
            let packed = &lines[chunk.start * step_lines..chunk.end * step_lines];
            let right = by.prepare(simd, Steps { heads, first: chunk.start, lines: packed }, scratch);
            for (idx, sums) in sums.iter_mut().enumerate() {
                let share = idx * chunk.len() * lines_per_step;
                let ahead = Ahead { first: packed.as_ptr().wrapping_add(distance + share), lines_per_step };
                let x = self.blocks.block(self.first_block + idx, chunk.clone());
                by.add_product(simd, x, RightSide { lines: right, ahead }, sums);
            }
        }
    }

    /// Converts the sums `[weights][blocks]` of a panel to values, a block at a time, and stores them in the
    /// destination.
    #[inline(always)]
    fn finish<S: Simd, M: Multiply>(
        &mut self,
        simd: S,
        panel: usize,
        sums: &[Block<M::Sum>],
        values: &mut [Block<f32>; WEIGHTS],
    ) {
        let block_rows = self.blocks.block_rows();
        let num_blocks = sums.len() / WEIGHTS;
        let idx_of_panel = self.first_panel + panel;
        for block in 0..num_blocks {
            self.destination.prefetch(simd, (panel, block + 1), block_rows);
            let rows = self.blocks.rows(self.first_block + block);
            for ((weight, values), sums) in self.weights.iter().zip(&mut *values).zip(sums.chunks_exact(num_blocks)) {
                let (scales, _) = weight.panel(idx_of_panel);
                for ((values, sums), row) in values.0.iter_mut().zip(&sums[block].0).zip(rows) {
                    M::finish(simd, sums, (row.scale, scales), values);
                }
            }
            match (self.finish, values.as_mut_slice()) {
                (Finish::Gate(activation), [gate, up, ..]) => {
                    let gate = gate.0[..block_rows].as_flattened_mut().as_chunks_mut().0;
                    activation.gate(simd, gate, up.0.as_flattened().as_chunks().0);
                }
                (Finish::Bias(bias), [values, ..]) => {
                    let bias = &bias[idx_of_panel * PANEL_OUTPUTS..];
                    for values in values.0.iter_mut().take(block_rows) {
                        values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
                    }
                }
                (Finish::Nothing | Finish::Gate(_) | Finish::Bias(_), _) => {}
            }
            self.destination.take(simd, (panel, block), block_rows, &values[0]);
        }
    }
}
