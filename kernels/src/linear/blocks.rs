//! Blocks of rows of x for products with tiled weights: `[blocks][steps][rows][parts]` lines of bf16, of int8 with a
//! scale for each row or of int16 with a scale for each line.
//!
//! Entry point: [`Blocks`]. X is int8 for int8 and int4 weights, and bf16 for bf16 weights. For narrow weights it is
//! bf16 if the instruction set multiplies pairs of bf16, otherwise int16. A row has one line per step. Only an
//! instruction set that multiplies int8 as 16-bit integers has two lines, one for each part of the words. Missing
//! inputs of the last step are zero; missing rows of the last block have arbitrary values.

use std::cell::Cell;
use std::ops::Range;

use numbers::int8;
use rayon::prelude::*;

use super::int4::{self, STEP_GROUPS};
use super::tiled_weight::Format;
use crate::isa::{Isa, Kernel, Simd, pair};
use crate::lines::{BLOCK_ROWS, Line, Lines};

/// The number of unused lines between blocks. Without them the distance between blocks could be a power of two, which
/// would map the same steps of all blocks to a few sets of the caches.
const GAP_LINES: usize = 128;

/// The number of rows that vectors multiply efficiently together. Fewer rows take as long, because they have too few
/// independent sums.
const SWEEP_ROWS: usize = 4;

thread_local! {
    /// Buffers for x. They are kept for reuse, because allocating one from the system takes longer than filling it.
    static SCRATCH: Cell<Vec<Lines>> = const { Cell::new(Vec::new()) };
}

/// All blocks of x.
pub(super) struct Blocks {
    lines: Lines,
    num_parts: usize,
    block_rows: usize,
    block_len: usize,
    rows: Vec<RowNumbers>,
    /// For int4 weights, the start values of the sums of each group, in the order of `lines`.
    starts: Vec<[u32; STEP_GROUPS]>,
    /// For int16, and for weights with minimums, the numbers of each line, in the order of `lines`.
    groups: Vec<GroupNumbers>,
}

/// The scale and the sum of the integers of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowNumbers {
    /// The scale of the integers; 1 for bf16.
    pub(super) scale: f32,
    /// The sum of the integers; 0 for bf16.
    pub(super) sum: i32,
}

/// The scale and the sums of a group of 32 values of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupNumbers {
    /// The scale of integers, a power of two, or NaN if a value is not finite; 1 for bf16.
    pub(super) scale: f32,
    /// The sums of the integers, which are exact, or of the bf16 values: those of each half or, if the halves of
    /// weights share their scales, in both elements that of the group.
    pub(super) sums: [f32; 2],
}

impl GroupNumbers {
    /// The numbers of bf16 values of which no sums are needed.
    pub(super) const NONE: Self = Self { scale: 1.0, sums: [0.0; 2] };

    /// Returns the sum of the values of a half or, if the halves of weights share their scales, of the group.
    #[inline(always)]
    pub(super) fn sum(&self, half: usize) -> f32 {
        self.sums[half] * self.scale
    }
}

/// A block of x, for some steps.
#[derive(Clone, Copy)]
pub(super) struct BlockOfX<'a> {
    /// `[steps][rows][parts]`
    pub(super) lines: &'a [Line],
    /// `[steps][rows]`, or empty.
    pub(super) starts: &'a [[u32; STEP_GROUPS]],
    /// `[steps][rows]`, or empty.
    pub(super) groups: &'a [GroupNumbers],
}

/// A block whose rows are rounded and laid out.
struct Round<'a> {
    format: Format,
    x: &'a [f32],
    num_inputs: usize,
    num_parts: usize,
    block_rows: usize,
    lines: &'a mut [Line],
    rows: &'a mut [RowNumbers],
    /// The start values in the order of `lines`, or empty.
    starts: &'a mut [[u32; STEP_GROUPS]],
    /// The numbers of groups in the order of `lines`, or empty.
    groups: &'a mut [GroupNumbers],
}

impl Blocks {
    /// Rounds x `[rows, num_inputs]` for weights of the given format, on the calling thread if `is_small`.
    pub(super) fn new(isa: Isa, format: Format, (x, num_inputs): (&[f32], usize), is_small: bool) -> Self {
        let num_parts = format.num_parts(isa);
        let Self { mut lines, block_rows, block_len, mut rows, .. } =
            Self::unwritten((format, num_parts), x.len() / num_inputs, num_inputs);
        let num_lines = rows.len() / block_rows * block_len;
        let mut starts = vec![[0; STEP_GROUPS]; if format == Format::Int4 { num_lines } else { 0 }];
        let mut groups = vec![GroupNumbers::NONE; if format.takes_groups(isa) { num_lines } else { 0 }];
        let (mut rest, mut rest_of_groups) = (starts.as_mut_slice(), groups.as_mut_slice());
        let blocks =
            lines.chunks_mut(block_len).zip(rows.chunks_mut(block_rows)).zip(x.chunks(block_rows * num_inputs));
        let blocks = blocks.map(|((lines, rows), x)| {
            let starts = rest.split_off_mut(..block_len.min(rest.len())).unwrap_or_default();
            let groups = rest_of_groups.split_off_mut(..block_len.min(rest_of_groups.len())).unwrap_or_default();
            Round { format, x, num_inputs, num_parts, block_rows, lines, rows, starts, groups }
        });
        let blocks: Vec<Round<'_>> = blocks.collect();
        let min_blocks = if is_small { blocks.len().max(1) } else { 1 };
        blocks.into_par_iter().with_min_len(min_blocks).for_each(|block| isa.run(block));
        Self { lines, num_parts, block_rows, block_len, rows, starts, groups }
    }

    /// Returns blocks for `num_rows` rows, with arbitrary values and with scales of 1.
    pub(super) fn unwritten((format, num_parts): (Format, usize), num_rows: usize, num_inputs: usize) -> Self {
        let block_rows = Self::rows_of_blocks(num_rows);
        let num_blocks = num_rows.div_ceil(block_rows);
        let gap = if num_blocks > 1 { GAP_LINES } else { 0 };
        let block_len = block_rows * num_inputs.div_ceil(format.step_inputs()) * num_parts + gap;
        let mut kept = SCRATCH.take();
        let len = num_blocks * block_len;
        // Layout: [blocks][steps][rows][parts]. A reused buffer may be longer than this.
        let lines = kept.pop().filter(|lines| lines.len() >= len).unwrap_or_else(|| Lines::zeros(len));
        SCRATCH.set(kept);
        let rows = vec![RowNumbers { scale: 1.0, sum: 0 }; num_blocks * block_rows];
        Self { lines, num_parts, block_rows, block_len, rows, starts: Vec::new(), groups: Vec::new() }
    }

    /// Returns the number of rows of each block when x has `num_rows` rows. The rows are spread over the blocks almost
    /// evenly, because the last block is multiplied as if it were full.
    pub(super) fn rows_of_blocks(num_rows: usize) -> usize {
        match num_rows.div_ceil(BLOCK_ROWS) {
            0 | 1 => num_rows.max(1),
            num_blocks => num_rows.div_ceil(num_blocks).next_multiple_of(SWEEP_ROWS),
        }
    }

    /// Returns the lines `[blocks][steps][rows][parts]`, and the number of lines per block.
    pub(super) fn lines_mut(&mut self) -> (&mut [Line], usize) {
        (&mut self.lines, self.block_len)
    }

    /// Keeps the buffer for the next call on this thread.
    pub(super) fn recycle(self) {
        let mut kept = SCRATCH.take();
        kept.push(self.lines);
        SCRATCH.set(kept);
    }

    /// The number of lines of a row in a step.
    pub(super) fn num_parts(&self) -> usize {
        self.num_parts
    }

    /// The number of rows of each block.
    pub(super) fn block_rows(&self) -> usize {
        self.block_rows
    }

    /// Returns the `steps` of a block.
    pub(super) fn block(&self, idx: usize, steps: Range<usize>) -> BlockOfX<'_> {
        let first = idx * self.block_len;
        let step_len = self.block_rows * self.num_parts;
        let lines = first + steps.start * step_len..first + steps.end * step_len;
        let starts = if self.starts.is_empty() { &[] } else { &self.starts[lines.clone()] };
        let groups = if self.groups.is_empty() { &[] } else { &self.groups[lines.clone()] };
        BlockOfX { lines: &self.lines[lines], starts, groups }
    }

    /// Returns the scales and sums of the rows of a block.
    pub(super) fn rows(&self, idx: usize) -> &[RowNumbers] {
        &self.rows[idx * self.block_rows..][..self.block_rows]
    }
}

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (row, x) in self.x.chunks_exact(self.num_inputs).enumerate() {
            let lines = self.lines.chunks_exact_mut(self.num_parts).skip(row).step_by(self.block_rows);
            match self.format {
                Format::Narrow(narrow) if !S::HAS_PAIRS => {
                    let groups = self.groups[row..].iter_mut().step_by(self.block_rows);
                    int16_row(x, narrow.num_scales(), lines.zip(groups));
                }
                Format::Bf16 | Format::Narrow(_) => bf16_row(simd, x, lines),
                Format::Int8 | Format::Int4 => self.rows[row] = int8_row(x, lines),
            }
        }
        if let Format::Narrow(narrow) = self.format
            && S::HAS_PAIRS
        {
            for (line, group) in self.lines.iter().zip(self.groups) {
                let [even, odd] = [line.0.map(|word| word << 16), line.0.map(|word| word & 0xffff_0000)];
                group.sums = sums_of_halves(&even, &odd);
                if narrow.num_scales() == 1 {
                    group.sums = [group.sums[0] + group.sums[1]; 2];
                }
            }
        }
        for (line, starts) in self.lines.iter().zip(self.starts) {
            let (quads, _) = line.0.as_chunks::<{ 16 / STEP_GROUPS }>();
            for (start, quads) in starts.iter_mut().zip(quads) {
                let [low, high] = int4::group_offsets(quads);
                *start = S::group_start(low, high);
            }
        }
    }
}

#[inline(always)]
fn bf16_row<'a, S: Simd>(simd: S, x: &[f32], lines: impl Iterator<Item = &'a mut [Line]>) {
    let (whole, rest) = padded(x);
    for (lines, values) in lines.zip(whole.iter().chain(&rest)) {
        simd.round_to_bf16(values, &mut lines[0]);
    }
}

/// Returns the sums of the inputs of each half of a step, from the f32 bits of its even and its odd inputs.
#[inline(always)]
fn sums_of_halves(even: &[u32; 16], odd: &[u32; 16]) -> [f32; 2] {
    let mut sums = [0.0; 16];
    for (sum, (even, odd)) in sums.iter_mut().zip(even.iter().zip(odd)) {
        *sum = f32::from_bits(*even) + f32::from_bits(*odd);
    }
    for len in [4, 2, 1] {
        for i in 0..len {
            sums[i] += sums[i + len];
            sums[8 + i] += sums[8 + i + len];
        }
    }
    [sums[0], sums[8]]
}

/// Quantizes a row to int16, with a scale for each line. The loops are plain, so that the compiler vectorises them.
#[inline(always)]
fn int16_row<'a>(x: &[f32], num_scales: usize, lines: impl Iterator<Item = (&'a mut [Line], &'a mut GroupNumbers)>) {
    let (whole, rest) = padded::<32>(x);
    for ((lines, group), values) in lines.zip(whole.iter().chain(&rest)) {
        let (scale, inverse) = int16_scale(values);
        let mut integers = [0; 32];
        for (integer, value) in integers.iter_mut().zip(values) {
            // Adding 1.5 * 2^23 rounds to a whole number, which is then in the lowest bits.
            let bits = (value * inverse + 12_582_912.0).to_bits();
            *integer = bits.wrapping_sub(0x4b40_0000).cast_signed().clamp(-32768, 32767);
        }
        for (word, [low, high]) in lines[0].0.iter_mut().zip(integers.as_chunks().0) {
            *word = high.cast_unsigned() << 16 | low.cast_unsigned() & 0xffff;
        }
        let [first, second] = [0, 16].map(|start| integers[start..][..16].iter().sum::<i32>());
        let sums = if num_scales == 1 { [first + second; 2] } else { [first, second] };
        *group = GroupNumbers { scale, sums: sums.map(|sum| sum as f32) };
    }
}

/// Returns the power of two that a group is divided by, so that its largest magnitude is from 2^14 to 2^15, and its
/// inverse. Both have limits, so that they are finite. The first is NaN if a value is not finite.
#[inline(always)]
fn int16_scale(values: &[f32; 32]) -> (f32, f32) {
    let mut largest = 0;
    for value in values {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    let exponent = (largest >> 23).max(16);
    if exponent == 255 {
        return (f32::NAN, 0.0);
    }
    (f32::from_bits((exponent - 14) << 23), f32::from_bits((127 + 127 + 14 - exponent) << 23))
}

/// Quantizes a row to int8. The loops are plain and each handles the values of one line, so that the compiler
/// vectorises them.
#[inline(always)]
fn int8_row<'a>(x: &[f32], lines: impl Iterator<Item = &'a mut [Line]>) -> RowNumbers {
    let (scale, inverse) = int8::scale(x);
    let (whole, rest) = padded::<64>(x);
    let mut sum = 0;
    for (lines, values) in lines.zip(whole.iter().chain(&rest)) {
        let mut bytes = [0; 64];
        for (byte, value) in bytes.iter_mut().zip(values) {
            *byte = int8::round(*value, inverse);
        }
        for byte in bytes {
            sum += i32::from(byte.cast_signed());
        }
        match lines {
            [even, odd] => {
                for (idx, bytes) in bytes.as_chunks().0.iter().enumerate() {
                    let [a, b, c, d] = bytes.map(|byte| i16::from(byte.cast_signed()));
                    [even.0[idx], odd.0[idx]] = [pair(a, c), pair(b, d)];
                }
            }
            lines => {
                for (word, bytes) in lines[0].0.iter_mut().zip(bytes.as_chunks().0) {
                    *word = u32::from_le_bytes(*bytes);
                }
            }
        }
    }
    RowNumbers { scale, sum }
}

/// Returns the values of whole lines, and the remaining values padded with zeros.
#[inline(always)]
fn padded<const INPUTS: usize>(x: &[f32]) -> (&[[f32; INPUTS]], Option<[f32; INPUTS]>) {
    let (whole, rest) = x.as_chunks();
    let mut padded = [0.0; INPUTS];
    padded[..rest.len()].copy_from_slice(rest);
    (whole, (!rest.is_empty()).then_some(padded))
}
