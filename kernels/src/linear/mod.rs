//! Linear layers: `y[m, out] = x[m, in] · Wᵀ + bias`, accumulated in f32.
//!
//! Doors: [`PackedWeight::pack`] or [`PackedWeight::pack_stored`] once at load, [`linear`] at every step. `packed_weight` lays the weight out in panels of
//! 32 outputs, `row_blocks` lays x out beside it, `tile` multiplies the two in registers, and this file cuts the work.
//!
//! Every element of y is one chain of multiply-adds over the inputs in ascending order, then the bias. How the work is
//! cut therefore never changes a bit of the result.

mod packed_weight;
mod row_blocks;
#[cfg(test)]
mod tests;
mod tile;

pub use packed_weight::{PackedWeight, StoredRows, WeightData};

use rayon::prelude::*;

use crate::isa::{self, Isa, Kernel, Simd};
use packed_weight::{PANEL_OUTPUTS, PANEL_VECTORS, Panels, WeightLine};
use row_blocks::{RowBlock, RowBlocks};
use tile::TileInputs;

/// Panels that share one pass over a row block.
const GROUP_PANELS: usize = 4;
/// Inputs per pass when there are several row blocks: a group's part of the weight (256 KiB of bf16) stays in the
/// second-level cache while all row blocks use it.
const PASS_INPUTS: usize = 1024;
/// Rows that are laid out at a time, which bounds the scratch memory.
const MAX_BLOCKED_ROWS: usize = 512;
/// Multiply-adds below which waking other threads costs more than it gives.
const MIN_PARALLEL_MULTIPLY_ADDS: usize = 1 << 18;
/// Pieces of work per thread, so that a thread which starts late takes fewer.
const TASKS_PER_THREAD: usize = 4;

/// `y = x · Wᵀ + bias`, with x `[m, in]`, W `[out, in]`, bias `[out]` and y `[m, out]`.
///
/// # Panics
/// When the lengths do not fit `weight`.
pub fn linear(x: &[f32], weight: &PackedWeight, bias: Option<&[f32]>, y: &mut [f32]) {
    linear_on(isa::active(), x, weight, bias, y);
}

/// [`linear`] with a given instruction set.
pub(crate) fn linear_on(isa: Isa, x: &[f32], weight: &PackedWeight, bias: Option<&[f32]>, y: &mut [f32]) {
    let (inputs, outputs) = (weight.num_inputs(), weight.num_outputs());
    let rows = y.len() / outputs;
    assert_eq!(y.len(), rows * outputs, "y holds {} values, not rows of {outputs} outputs", y.len());
    assert_eq!(x.len(), rows * inputs, "x holds {} values, not {rows} rows of {inputs} inputs", x.len());
    if let Some(bias) = bias {
        assert_eq!(bias.len(), outputs, "bias holds {} values, not {outputs} outputs", bias.len());
    }
    let x_parts = x.chunks(MAX_BLOCKED_ROWS * inputs);
    for (x, y) in x_parts.zip(y.chunks_mut(MAX_BLOCKED_ROWS * outputs)) {
        let blocks = RowBlocks::new(x, inputs, isa.num_sums() / PANEL_VECTORS); // [blocks][inputs, rows of the block]
        let product = Product { isa, blocks: &blocks, weight, bias };
        product.compute(y);
    }
}

/// The product of some rows with a weight.
struct Product<'a> {
    isa: Isa,
    blocks: &'a RowBlocks<'a>,
    weight: &'a PackedWeight,
    bias: Option<&'a [f32]>,
}

/// The part of y that one thread computes: some row blocks and some panels.
struct Task<'a> {
    first_block: usize,
    num_blocks: usize,
    first_panel: usize,
    /// `[rows of the blocks][outputs of the panels]`
    y_rows: Vec<&'a mut [f32]>,
}

impl Product<'_> {
    fn compute(&self, y: &mut [f32]) {
        let num_multiply_adds = y.len() * self.weight.num_inputs();
        let is_small = num_multiply_adds < MIN_PARALLEL_MULTIPLY_ADDS;
        let num_tasks = if is_small { 1 } else { rayon::current_num_threads() * TASKS_PER_THREAD };
        // A single task stays on the calling thread.
        self.cut(y, num_tasks).into_par_iter().for_each(|task| self.run(task));
    }

    /// Cuts y `[rows, outputs]` into about `num_tasks` tasks: by panels, and by row blocks where panels are too few.
    fn cut<'y>(&self, mut y: &'y mut [f32], num_tasks: usize) -> Vec<Task<'y>> {
        let outputs = self.weight.num_outputs();
        let num_panels = outputs.div_ceil(PANEL_OUTPUTS);
        let mut task_panels = num_panels.div_ceil(num_tasks);
        if task_panels > GROUP_PANELS {
            task_panels = task_panels.next_multiple_of(GROUP_PANELS);
        }
        let num_blocks = self.blocks.len();
        let num_block_parts = (num_tasks / num_panels.div_ceil(task_panels)).clamp(1, num_blocks.max(1));
        let task_blocks = num_blocks.div_ceil(num_block_parts).max(1);
        let mut tasks = Vec::new();
        for first_block in (0..num_blocks).step_by(task_blocks) {
            let task_blocks = task_blocks.min(num_blocks - first_block);
            let num_rows: usize =
                (first_block..first_block + task_blocks).map(|idx| self.blocks.block(idx).num_rows).sum();
            let (part, rest) = y.split_at_mut(num_rows * outputs);
            y = rest;
            let first_task = tasks.len();
            tasks.extend((0..num_panels).step_by(task_panels).map(|first_panel| Task {
                first_block,
                num_blocks: task_blocks,
                first_panel,
                y_rows: Vec::with_capacity(num_rows),
            }));
            for row in part.chunks_mut(outputs) {
                let pieces = row.chunks_mut(task_panels * PANEL_OUTPUTS);
                tasks[first_task..].iter_mut().zip(pieces).for_each(|(task, piece)| task.y_rows.push(piece));
            }
        }
        tasks
    }

    fn run(&self, mut task: Task<'_>) {
        for y in &mut task.y_rows {
            y.fill(0.0);
        }
        let (blocks, task) = (self.blocks, &mut task);
        match self.weight.panels() {
            Panels::F32(lines) => self.isa.run(TaskProduct { blocks, lines, task }),
            Panels::Bf16(lines) => self.isa.run(TaskProduct { blocks, lines, task }),
            Panels::F16(lines) => self.isa.run(TaskProduct { blocks, lines, task }),
        }
        if let Some(bias) = self.bias {
            for y in &mut task.y_rows {
                let bias = &bias[task.first_panel * PANEL_OUTPUTS..][..y.len()];
                y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
            }
        }
    }
}

/// Adds the product of a task's row blocks and panels to its part of y.
struct TaskProduct<'a, 'y, L> {
    blocks: &'a RowBlocks<'a>,
    /// Of the whole weight: `[panels, inputs]`.
    lines: &'a [L],
    task: &'a mut Task<'y>,
}

impl<L: WeightLine> Kernel for TaskProduct<'_, '_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { blocks, lines, task } = self;
        let num_inputs = blocks.num_inputs();
        let num_panels = task.y_rows[0].len().div_ceil(PANEL_OUTPUTS);
        let lines = &lines[task.first_panel * num_inputs..][..num_panels * num_inputs];
        let pass_inputs = if task.num_blocks == 1 { num_inputs } else { PASS_INPUTS };
        for first_input in (0..num_inputs).step_by(pass_inputs) {
            let inputs = first_input..(first_input + pass_inputs).min(num_inputs);
            for (group, group_lines) in lines.chunks(GROUP_PANELS * num_inputs).enumerate() {
                let mut y_rows = &mut task.y_rows[..];
                for idx in task.first_block..task.first_block + task.num_blocks {
                    let RowBlock { num_rows, x } = blocks.block(idx);
                    let (block_y_rows, rest) = y_rows.split_at_mut(num_rows);
                    y_rows = rest;
                    let x = &x[inputs.start * num_rows..inputs.end * num_rows];
                    let tile = TileInputs { lines: group_lines, panel_lines: num_inputs, inputs: inputs.clone(), x };
                    tile::multiply(simd, &tile, group * GROUP_PANELS * PANEL_OUTPUTS, block_y_rows);
                }
            }
        }
    }
}
