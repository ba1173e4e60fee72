//! x in blocks of rows for products with tiled weights: `[blocks][steps][rows]` lines of bf16 or, with a scale per row, of int8.
//!
//! Door: [`Blocks`]. Missing rows of the last block, and missing inputs of the last step, are zero.

use std::cell::Cell;
use std::ops::Range;

use rayon::prelude::*;

use super::int4::{self, STEP_GROUPS};
use super::tiled_weight::Format;
use crate::integers::{int8, int8_scale};
use crate::isa::{Isa, Kernel, Simd};
use crate::lines::{BLOCK_ROWS, Line};

thread_local! {
    /// Memory for x, kept: to get it from the system takes longer than to fill it.
    static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// All blocks of x.
pub(super) struct Blocks {
    lines: Vec<Line>,
    block_rows: usize,
    block_len: usize,
    /// What the integers of each row are multiplied with; 1 for bf16.
    scales: Vec<f32>,
    /// For weights of four bits what the sums of each group begin with, as lines.
    starts: Vec<[u32; STEP_GROUPS]>,
}

/// A block of x, for some steps.
#[derive(Clone, Copy)]
pub(super) struct BlockOfX<'a> {
    /// `[steps][rows]`
    pub(super) lines: &'a [Line],
    /// `[steps][rows]`, or none.
    pub(super) starts: &'a [[u32; STEP_GROUPS]],
    /// `[rows]`
    pub(super) scales: &'a [f32],
}

/// Rounds the rows of a block.
struct Round<'a> {
    format: Format,
    x: &'a [f32],
    num_inputs: usize,
    block_rows: usize,
    lines: &'a mut [Line],
    scales: &'a mut [f32],
}

impl Blocks {
    /// Rounds x `[rows, num_inputs]`, on one thread if it `is_small`.
    pub(super) fn new(isa: Isa, format: Format, (x, num_inputs): (&[f32], usize), is_small: bool) -> Self {
        let num_rows = x.len() / num_inputs;
        let block_rows = num_rows.clamp(1, BLOCK_ROWS);
        let block_len = block_rows * num_inputs.div_ceil(format.step_inputs());
        let num_blocks = num_rows.div_ceil(block_rows);
        let mut lines = SCRATCH.take();
        lines.clear();
        lines.resize(num_blocks * block_len, Line([0; 16])); // [blocks][steps][rows]
        let mut scales = vec![1.0; num_blocks * block_rows]; // [rows]
        let min_blocks = if is_small { num_blocks.max(1) } else { 1 };
        let blocks = lines.par_chunks_mut(block_len).zip(scales.par_chunks_mut(block_rows));
        let blocks = blocks.zip(x.par_chunks(block_rows * num_inputs)).with_min_len(min_blocks);
        blocks.for_each(|((lines, scales), x)| isa.run(Round { format, x, num_inputs, block_rows, lines, scales }));
        let starts = if format == Format::Int4 { starts(&lines) } else { Vec::new() };
        Self { lines, block_rows, block_len, scales, starts }
    }

    /// Keeps the memory for the next call of this thread.
    pub(super) fn recycle(self) {
        SCRATCH.set(self.lines);
    }

    /// Rows of each block.
    pub(super) fn block_rows(&self) -> usize {
        self.block_rows
    }

    /// A block's part of `steps`.
    pub(super) fn block(&self, idx: usize, steps: Range<usize>) -> BlockOfX<'_> {
        let first = idx * self.block_len;
        let lines = first + steps.start * self.block_rows..first + steps.end * self.block_rows;
        let starts = if self.starts.is_empty() { &[] } else { &self.starts[lines.clone()] };
        let scales = &self.scales[idx * self.block_rows..][..self.block_rows];
        BlockOfX { lines: &self.lines[lines], starts, scales }
    }
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for (row, x) in self.x.chunks_exact(self.num_inputs).enumerate() {
            let lines = self.lines.iter_mut().skip(row).step_by(self.block_rows);
            match self.format {
                Format::Bf16 => {
                    round_row::<32>(x, lines, |line, values| {
                        for (word, pair) in line.0.iter_mut().zip(values.as_chunks::<2>().0) {
                            *word = bf16_bits(pair[1]) & 0xffff_0000 | bf16_bits(pair[0]) >> 16;
                        }
                    });
                }
                Format::Int8 | Format::Int4 => {
                    let (scale, inverse) = int8_scale(x);
                    self.scales[row] = scale;
                    round_row::<64>(x, lines, |line, values| {
                        for (word, [a, b, c, d]) in line.0.iter_mut().zip(values.as_chunks::<4>().0) {
                            *word = u32::from_le_bytes([a, b, c, d].map(|value| int8(*value, inverse)));
                        }
                    });
                }
            }
        }
    }
}

fn starts(lines: &[Line]) -> Vec<[u32; STEP_GROUPS]> {
    let start = |line: &Line| {
        let (quads, _) = line.0.as_chunks::<{ 16 / STEP_GROUPS }>();
        std::array::from_fn(|group| int4::start(&quads[group]))
    };
    lines.iter().map(start).collect()
}

#[inline(always)]
fn round_row<'a, const INPUTS: usize>(
    x: &[f32],
    lines: impl Iterator<Item = &'a mut Line>,
    round: impl Fn(&mut Line, &[f32; INPUTS]),
) {
    let (whole, rest) = x.as_chunks::<INPUTS>();
    let mut padded = [0.0; INPUTS];
    padded[..rest.len()].copy_from_slice(rest);
    let padded = (!rest.is_empty()).then_some(&padded);
    for (line, values) in lines.zip(whole.iter().chain(padded)) {
        round(line, values);
    }
}

/// The nearest bf16 in the upper half, of two the even one; the rest is not zero.
#[inline(always)]
fn bf16_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    if value.is_nan() { bits | 0x40_0000 } else { rounded }
}
