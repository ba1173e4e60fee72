//! Linear layers: `y[m, out] = x[m, in] · Wᵀ + bias`.
//!
//! Entry points: [`PackedWeight::pack`] once at load, [`linear`] at every step, [`linear_each`] for several layers of
//! the same x, and [`gated_mlp`] for the three layers of a feed-forward network. `packed_weight` stores the weight in
//! panels of 32 outputs, `row_blocks` lays x out to match, `tile` multiplies both in registers, and this file divides y
//! among threads. Other weights use `tiled_weight` and `tiled` instead: int8 and int4 weights, those of `narrow` and,
//! if the instruction set multiplies pairs of bf16, bf16 weights.
//!
//! With float weights, every element of y is one chain of multiply-adds over the inputs in ascending order (with bf16
//! weights, over pairs of inputs on AVX-512 BF16 and over steps of 32 inputs on AMX), then the bias. With weights of
//! `narrow`, it is one chain over groups of inputs. With int8 and int4 weights, the sums are exact integers. The
//! division among threads therefore never changes a bit of the result.

mod bf16_panel;
mod bf16_row;
mod blocks;
mod group_tile;
mod int4;
mod level_dots;
mod level_row;
mod level_sums;
mod level_tile;
mod levels;
mod multiply;
mod mxfp4;
mod narrow;
mod packed_weight;
mod parts;
mod row_blocks;
#[cfg(test)]
mod tests;
mod tile;
mod tiled;
mod tiled_weight;
mod unpacked;

pub use packed_weight::{PackedWeight, StoredRows, WeightType};

use std::ops::Range;

use rayon::prelude::*;

use crate::activation::{self, Activation};
use crate::isa::{self, Isa, Kernel, Simd};
use crate::scratch::Scratch;
use packed_weight::{PANEL_OUTPUTS, Panels, WeightLine};
use parts::{PanelCut, Part};
use row_blocks::{RowBlock, RowBlocks};
use tile::{LinesAhead, TileInputs};

/// The number of panels that share one pass over a row block.
const GROUP_PANELS: usize = 4;
/// The number of inputs per pass if there are several row blocks. The weights of a group of panels in one pass (256 KiB
/// in bf16) stay in the second-level cache while all row blocks use them.
const PASS_INPUTS: usize = 1024;
/// The maximum number of rows of x that are laid out at a time. It limits the scratch memory.
const MAX_BLOCKED_ROWS: usize = 512;
/// The number of multiply-adds below which waking other threads costs more time than it saves.
const MIN_PARALLEL_MULTIPLY_ADDS: usize = 1 << 18;
/// The prefetch distance, in lines, where each line is read only once, so that memory limits the speed.
const LINES_AHEAD: usize = 128;
/// The number of tasks per thread. There are several, so that a thread that starts late can leave tasks to the others.
const TASKS_PER_THREAD: usize = 4;

/// Computes `y = x · Wᵀ + bias`, with x `[m, in]`, W `[out, in]`, bias `[out]` and y `[m, out]`.
///
/// # Panics
/// When the lengths of `x`, `bias` or `y` do not fit `weight`.
pub fn linear(x: &[f32], weight: &PackedWeight, bias: Option<&[f32]>, y: &mut [f32]) {
    linear_on(isa::active(), x, weight, bias, y);
}

/// A layer that shares its x with other layers.
#[derive(Debug)]
pub struct Layer<'a> {
    /// `[out, in]`
    pub weight: &'a PackedWeight,
    /// `[out]`
    pub bias: Option<&'a [f32]>,
    /// `[m, out]`
    pub y: &'a mut [f32],
}

/// Computes [`linear`] of each layer, with the same bits. If all weights are tiled in one format, they share the
/// rounded x and the loop over threads. Other layers share at most the layout of x.
///
/// # Panics
/// When the weights differ in their number of inputs, or the lengths of `x`, a bias or a `y` do not fit a weight.
pub fn linear_each(x: &[f32], layers: Vec<Layer<'_>>) {
    linear_each_on(isa::active(), x, layers);
}

/// [`linear`] with a given instruction set.
pub(crate) fn linear_on(isa: Isa, x: &[f32], weight: &PackedWeight, bias: Option<&[f32]>, y: &mut [f32]) {
    linear_each_on(isa, x, vec![Layer { weight, bias, y }]);
}

/// [`linear_each`] with a given instruction set.
pub(crate) fn linear_each_on(isa: Isa, x: &[f32], mut layers: Vec<Layer<'_>>) {
    let Some(Layer { weight: first, .. }) = layers.first() else { return };
    let (inputs, format) = (first.num_inputs(), first.tiled_format());
    layers.iter().for_each(|layer| layer.check(x.len(), inputs));
    let is_tiled = format.is_some() && layers.iter().all(|layer| layer.weight.tiled_format() == format);
    for x in x.chunks(MAX_BLOCKED_ROWS * inputs) {
        let parts: Vec<Layer<'_>> = layers.iter_mut().map(|layer| layer.take_rows(x.len() / inputs)).collect();
        if is_tiled {
            tiled::linear(isa, (x, inputs), parts);
            continue;
        }
        let blocks = RowBlocks::new(x, inputs, isa.max_rows()); // [blocks][inputs, rows of the block]
        for Layer { weight, bias, y } in parts {
            match weight.panels() {
                Panels::Tiled(_) => tiled::linear(isa, (x, inputs), vec![Layer { weight, bias, y }]),
                Panels::F32(_) | Panels::Bf16(_) | Panels::F16(_) => {
                    Product { isa, blocks: &blocks, weight, bias }.compute(y);
                }
            }
        }
    }
}

impl<'a> Layer<'a> {
    fn check(&self, x_len: usize, inputs: usize) {
        let Self { weight, bias, y } = self;
        let outputs = weight.num_outputs();
        let rows = y.len() / outputs;
        assert_eq!(
            weight.num_inputs(),
            inputs,
            "a layer has {} inputs, but the first has {inputs}",
            weight.num_inputs()
        );
        assert_eq!(y.len(), rows * outputs, "y holds {} values, not rows of {outputs} outputs", y.len());
        assert_eq!(x_len, rows * inputs, "x holds {x_len} values, not {rows} rows of {inputs} inputs");
        if let Some(bias) = bias {
            assert_eq!(bias.len(), outputs, "bias holds {} values, not {outputs} outputs", bias.len());
        }
    }

    /// Splits the first `rows` rows off y, and returns a layer with these rows.
    fn take_rows(&mut self, rows: usize) -> Self {
        let Self { weight, bias, y } = self;
        let (first, rest) = std::mem::take(y).split_at_mut(rows * weight.num_outputs());
        *y = rest;
        Self { weight, bias: *bias, y: first }
    }
}

/// Computes `y = (f(x · gateᵀ) * (x · upᵀ)) · downᵀ`, with x `[m, in]`, gate and up `[between, in]`, down `[out,
/// between]` and y `[m, out]`. The bits are those of [`linear`] and [`activation::gated`], called one after the other.
/// If all weights are tiled, gate and up in the same format and down in bf16, the gated values are written once, in the
/// layout that `down` reads.
///
/// # Panics
/// When the lengths of `x` and `y` do not fit the weights, or the weights do not fit one another.
pub fn gated_mlp(x: &[f32], weights: [&PackedWeight; 3], activation: Activation, y: &mut [f32]) {
    gated_mlp_on(isa::active(), x, weights, activation, y);
}

/// [`gated_mlp`] with a given instruction set.
pub(crate) fn gated_mlp_on(
    isa: Isa,
    x: &[f32],
    [gate, up, down]: [&PackedWeight; 3],
    activation: Activation,
    y: &mut [f32],
) {
    let [inputs, between, outputs] = [gate.num_inputs(), gate.num_outputs(), down.num_outputs()];
    let rows = y.len() / outputs;
    assert_eq!([up.num_inputs(), up.num_outputs()], [inputs, between], "up must be [{between}, {inputs}] as gate is");
    assert_eq!(down.num_inputs(), between, "down must take {between} inputs, the outputs of gate");
    assert_eq!(y.len(), rows * outputs, "y holds {} values, not rows of {outputs} outputs", y.len());
    assert_eq!(x.len(), rows * inputs, "x holds {} values, not {rows} rows of {inputs} inputs", x.len());
    let x_parts = x.chunks(MAX_BLOCKED_ROWS * inputs);
    for (x, y) in x_parts.zip(y.chunks_mut(MAX_BLOCKED_ROWS * outputs)) {
        match [gate, up, down].map(PackedWeight::panels) {
            [Panels::Tiled(gate), Panels::Tiled(up), Panels::Tiled(down)] if gate.format() == up.format() => {
                tiled::gated_mlp(isa, x, [gate, up, down], activation, y);
            }
            _ => {
                let [mut opened, mut raised, mut gated] = [(); 3].map(|()| Scratch::of(x.len() / inputs * between)); // [m, between]
                let layers = [(gate, &mut opened), (up, &mut raised)];
                let layers = layers.map(|(weight, y)| Layer { weight, bias: None, y });
                linear_each_on(isa, x, layers.into());
                activation::gated_on(isa, activation, [&opened, &raised], &mut gated);
                linear_on(isa, &gated, down, None, y);
            }
        }
    }
}

/// The product of x, in row blocks, and a weight.
struct Product<'a> {
    isa: Isa,
    blocks: &'a RowBlocks<'a>,
    weight: &'a PackedWeight,
    bias: Option<&'a [f32]>,
}

impl Product<'_> {
    fn compute(&self, y: &mut [f32]) {
        let num_multiply_adds = y.len() * self.weight.num_inputs();
        let is_small = num_multiply_adds < MIN_PARALLEL_MULTIPLY_ADDS;
        let num_tasks = if is_small { 1 } else { rayon::current_num_threads() * TASKS_PER_THREAD };
        // A single task stays on the calling thread.
        let (task_blocks, part_panels) = self.cut(num_tasks);
        let blocks: Vec<usize> = (0..self.blocks.len()).collect();
        let rows_of = |blocks: &[usize]| blocks.iter().map(|idx| self.blocks.block(*idx).num_rows).sum();
        let group_rows = blocks.chunks(task_blocks).map(rows_of);
        let num_outputs = self.weight.num_outputs();
        let num_panels = num_outputs.div_ceil(PANEL_OUTPUTS);
        let panels = PanelCut { panel_len: PANEL_OUTPUTS, num_panels, part_panels };
        let parts = parts::cut(y, num_outputs, panels, group_rows);
        parts.into_par_iter().with_max_len(1).for_each(|part| self.run(part, task_blocks));
    }

    /// Returns the numbers of row blocks and of panels of a task, for about `num_tasks` tasks. y is divided by panels
    /// first and, if there are too few panels, by row blocks too.
    fn cut(&self, num_tasks: usize) -> (usize, usize) {
        let num_panels = self.weight.num_outputs().div_ceil(PANEL_OUTPUTS);
        let mut task_panels = num_panels.div_ceil(num_tasks);
        if task_panels > GROUP_PANELS {
            task_panels = task_panels.next_multiple_of(GROUP_PANELS);
        }
        let num_blocks = self.blocks.len();
        let num_block_parts = (num_tasks / num_panels.div_ceil(task_panels)).clamp(1, num_blocks.max(1));
        (num_blocks.div_ceil(num_block_parts).max(1), task_panels)
    }

    fn run(&self, mut part: Part<'_, f32>, task_blocks: usize) {
        for y in &mut part.rows {
            y.fill(0.0);
        }
        let first_block = part.group * task_blocks;
        let (blocks, part) = ((self.blocks, first_block), &mut part);
        match self.weight.panels() {
            Panels::F32(lines) => self.isa.run(PartProduct { blocks, lines, part }),
            Panels::Bf16(lines) => self.isa.run(PartProduct { blocks, lines, part }),
            Panels::F16(lines) => self.isa.run(PartProduct { blocks, lines, part }),
            Panels::Tiled(_) => unreachable!("tiles are multiplied by `tiled`"),
        }
        if let Some(bias) = self.bias {
            for y in &mut part.rows {
                let bias = &bias[part.first_panel * PANEL_OUTPUTS..][..y.len()];
                y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
            }
        }
    }
}

/// Adds the product of some row blocks and panels to a part of y.
struct PartProduct<'a, 'y, L> {
    /// All row blocks, and the index of the first block of the part.
    blocks: (&'a RowBlocks<'a>, usize),
    /// The lines of the whole weight: `[panels, inputs]`.
    lines: &'a [L],
    part: &'a mut Part<'y, f32>,
}

impl<L: WeightLine> Kernel for PartProduct<'_, '_, L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { blocks: (blocks, first_block), lines, part } = self;
        let num_inputs = blocks.num_inputs();
        let num_panels = part.num_panels;
        let lines = &lines[part.first_panel * num_inputs..][..num_panels * num_inputs];
        let num_blocks = blocks.count_of_rows(first_block, part.rows.len());
        let pass_inputs = if num_blocks == 1 { num_inputs } else { PASS_INPUTS };
        for first_input in (0..num_inputs).step_by(pass_inputs) {
            let inputs = first_input..(first_input + pass_inputs).min(num_inputs);
            for (group, group_lines) in lines.chunks(GROUP_PANELS * num_inputs).enumerate() {
                let mut y_rows = &mut part.rows[..];
                for idx in 0..num_blocks {
                    let RowBlock { num_rows, x } = blocks.block(first_block + idx);
                    let (block_y_rows, rest) = y_rows.split_at_mut(num_rows);
                    y_rows = rest;
                    let x = &x[inputs.start * num_rows..inputs.end * num_rows];
                    let ahead = ahead((group_lines, num_inputs), &inputs, (idx, num_blocks));
                    let tile =
                        TileInputs { lines: group_lines, panel_lines: num_inputs, inputs: inputs.clone(), x, ahead };
                    tile::multiply(simd, &tile, group * GROUP_PANELS * PANEL_OUTPUTS, block_y_rows);
                }
            }
        }
    }
}

/// Returns the lines that a row block prefetches: its share of the next group of panels or, for a single block, the
/// lines that are [`LINES_AHEAD`] lines further on. Returns `None` if the other row blocks prefetch the whole group
/// already.
#[inline(always)]
fn ahead<L>(
    (group_lines, num_inputs): (&[L], usize),
    inputs: &Range<usize>,
    (block, num_blocks): (usize, usize),
) -> Option<LinesAhead<L>> {
    // The largest power of two that is at most `num_blocks`.
    let inputs_per_line = 1 << num_blocks.ilog2();
    let distance = if num_blocks == 1 {
        LINES_AHEAD
    } else {
        GROUP_PANELS * num_inputs + block * inputs.len().div_ceil(inputs_per_line)
    };
    let first = group_lines.as_ptr().wrapping_add(inputs.start + distance);
    (block < inputs_per_line).then_some(LinesAhead { first, inputs_per_line })
}
