//! A weight matrix in panels for block products: `[panels][scales, then steps][2 tiles][16 lines][16 outputs]`.
//!
//! Entry point: [`TiledWeight`]. A step is 32 inputs of bf16 or 64 of int8, for the 32 outputs of a panel; a word of a
//! line holds 2 or 4 adjacent inputs of one output. `int4` and `narrow` define the steps of their weights. Missing
//! outputs of the last panel, and missing inputs of the last step, count as zero.

use std::slice::Chunks;

use half::bf16;
use numbers::blocks::BlockType;
use numbers::int8;
use rayon::prelude::*;

use super::bf16_panel::PackPairsOfInputs;
use super::int4::{self, INT4_STEP_LINES};
use super::levels;
use super::mxfp4;
use super::narrow::Narrow;
use super::packed_weight::{PANEL_OUTPUTS, PIECE_BYTES, Stored, StoredRows};
use crate::isa::{Isa, Kernel, Simd};
use crate::lines::{Line, Lines, STEP_LINES, TILE_SIZE};

/// The content of the words of a tiled weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Pairs of bf16.
    Bf16,
    /// Four int8 values from -127 to 127, with a scale per output.
    Int8,
    /// Eight int4 values, in the layout of `int4`.
    Int4,
    /// Numbers of few bits, in a layout of `narrow`.
    Narrow(Narrow),
}

/// A weight matrix in panels of tiles.
#[derive(Debug)]
pub(super) struct TiledWeight {
    format: Format,
    /// The numbers of outputs and of inputs.
    sizes: [usize; 2],
    lines: Lines,
}

impl Format {
    /// The number of inputs of a step.
    pub(super) fn step_inputs(self) -> usize {
        match self {
            Self::Bf16 | Self::Narrow(_) => 32,
            Self::Int8 | Self::Int4 => 64,
        }
    }

    /// The number of lines of a step.
    pub(super) fn step_lines(self) -> usize {
        match self {
            Self::Bf16 | Self::Int8 => STEP_LINES,
            Self::Int4 => INT4_STEP_LINES,
            Self::Narrow(narrow) => narrow.step_lines(),
        }
    }

    /// The number of lines of a panel before its first step. Those of integers hold a scale for each output.
    fn num_scale_lines(self, num_inputs: usize) -> usize {
        match self {
            Self::Bf16 => 0,
            Self::Narrow(narrow) => narrow.num_head_lines(num_inputs),
            Self::Int8 | Self::Int4 => PANEL_OUTPUTS * size_of::<f32>() / size_of::<Line>(),
        }
    }

    /// True if x is multiplied as bf16.
    pub(super) fn takes_bf16(self, isa: Isa) -> bool {
        match self {
            Self::Bf16 => true,
            Self::Narrow(_) => isa.rounds_to_bf16(),
            Self::Int8 | Self::Int4 => false,
        }
    }

    /// The number of lines of a row of x in a step.
    pub(super) fn num_parts(self, isa: Isa) -> usize {
        match self {
            Self::Bf16 | Self::Int4 | Self::Narrow(_) => 1,
            Self::Int8 => isa.dot_parts(),
        }
    }

    /// The number of words of a line of x that a product of tiles takes.
    pub(super) fn product_words(self) -> usize {
        match self {
            Self::Bf16 | Self::Int8 | Self::Int4 => TILE_SIZE,
            Self::Narrow(narrow) => TILE_SIZE / narrow.num_scales(),
        }
    }

    /// True if products with the weights need the scales or the sums of each group of x.
    pub(super) fn takes_groups(self, isa: Isa) -> bool {
        matches!(self, Self::Narrow(narrow) if narrow.has_least() || !self.takes_bf16(isa))
    }

    fn num_steps(self, num_inputs: usize) -> usize {
        num_inputs.div_ceil(self.step_inputs())
    }

    fn panel_len(self, num_inputs: usize) -> usize {
        self.num_scale_lines(num_inputs) + self.num_steps(num_inputs) * self.step_lines()
    }
}

impl TiledWeight {
    pub(super) fn pack(isa: Isa, format: Format, stored: &Stored<'_>) -> Self {
        let [num_outputs, num_inputs] = stored.sizes;
        let panel_len = format.panel_len(num_inputs);
        let mut lines = Lines::of_weight(num_outputs.div_ceil(PANEL_OUTPUTS) * panel_len);
        match format {
            Format::Bf16 => stored.fill_panels(&mut lines, panel_len, |panel, rows: &[bf16]| {
                isa.run(PackPairsOfInputs { panel, rows, num_inputs });
            }),
            Format::Int8 | Format::Int4 => stored.fill_panels(&mut lines, panel_len, |panel, rows: &[f32]| {
                isa.run(PackIntegers { format, panel, num_inputs, rows });
            }),
            Format::Narrow(_) => stored.fill_panels(&mut lines, panel_len, |panel, rows: &[f32]| {
                isa.run(PackMxfp4 { panel, rows: rows.chunks(num_inputs) });
            }),
        }
        Self { format, sizes: stored.sizes, lines }
    }

    /// Packs a weight that is stored in blocks; see [`PackedWeight::of_blocks`](super::PackedWeight::of_blocks).
    pub(super) fn of_blocks(sizes: [usize; 2], kind: BlockType, rows: &StoredRows<'_>) -> Self {
        let [num_outputs, num_inputs] = sizes;
        let format = Format::Narrow(Narrow::Blocks(kind));
        let (panel_len, num_heads) = (format.panel_len(num_inputs), format.num_scale_lines(num_inputs));
        let row_bytes = num_inputs / kind.block_len() * kind.block_bytes();
        let num_panels = (PIECE_BYTES / (PANEL_OUTPUTS * row_bytes)).max(1);
        let mut lines = Lines::of_weight(num_outputs.div_ceil(PANEL_OUTPUTS) * panel_len);
        lines.par_chunks_mut(num_panels * panel_len).enumerate().for_each(|(piece, panels)| {
            let first = piece * num_panels * PANEL_OUTPUTS;
            let last = (first + num_panels * PANEL_OUTPUTS).min(num_outputs);
            rows(first..last, &mut |bytes| {
                let rows_of_panels = bytes.chunks(PANEL_OUTPUTS * row_bytes);
                for (panel, rows) in panels.chunks_mut(panel_len).zip(rows_of_panels) {
                    let (heads, steps) = panel.split_at_mut(num_heads);
                    for (output, row) in rows.chunks_exact(row_bytes).enumerate() {
                        levels::pack(kind, (&mut *heads, &mut *steps), output, row);
                    }
                }
            });
        });
        Self { format, sizes, lines }
    }

    /// Returns the memory of [`TiledWeight::of_blocks`] in bytes.
    pub(super) fn bytes_of_blocks([num_outputs, num_inputs]: [usize; 2], kind: BlockType) -> usize {
        let panel_len = Format::Narrow(Narrow::Blocks(kind)).panel_len(num_inputs);
        num_outputs.div_ceil(PANEL_OUTPUTS) * panel_len * size_of::<Line>()
    }

    /// Returns the format of the words: pairs of bf16, four int8 or eight int4 values.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// The numbers of outputs and of inputs.
    pub(super) fn sizes(&self) -> [usize; 2] {
        self.sizes
    }

    /// The number of steps of a panel.
    pub(super) fn num_steps(&self) -> usize {
        self.format.num_steps(self.sizes[1])
    }

    /// The number of lines from one panel to the next.
    pub(super) fn panel_len(&self) -> usize {
        self.format.panel_len(self.sizes[1])
    }

    /// Returns the scales of a panel's outputs, and the lines of its steps.
    pub(super) fn panel(&self, idx: usize) -> (&[Line], &[Line]) {
        let panel_len = self.panel_len();
        self.lines[idx * panel_len..][..panel_len].split_at(self.format.num_scale_lines(self.sizes[1]))
    }

    /// Returns a panel's steps for the product of a single row. Scales that belong to groups of inputs come first.
    pub(super) fn panel_of_row(&self, idx: usize) -> &[Line] {
        let panel_len = self.panel_len();
        match self.format {
            Format::Narrow(_) => &self.lines[idx * panel_len..][..panel_len],
            Format::Bf16 | Format::Int8 | Format::Int4 => self.panel(idx).1,
        }
    }

    pub(super) fn size_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    pub(super) fn copy_row(&self, output: usize, row: &mut [f32]) {
        let (scales, steps) = self.panel(output / PANEL_OUTPUTS);
        let output = output % PANEL_OUTPUTS;
        match self.format {
            Format::Int4 => {
                int4::copy_row(steps, output, row);
                let scale = scale(scales, output);
                return row.iter_mut().for_each(|weight| *weight *= scale);
            }
            Format::Narrow(narrow) => return narrow.copy_row((scales, steps), output, row),
            Format::Bf16 | Format::Int8 => {}
        }
        let (first_line, column) = (output / TILE_SIZE * TILE_SIZE, output % TILE_SIZE);
        let words = steps.chunks_exact(STEP_LINES).flat_map(|step| &step[first_line..][..TILE_SIZE]);
        let words = words.map(|line| line.0[column]);
        match self.format {
            Format::Bf16 => {
                let values = words.flat_map(|word| [word << 16, word & 0xffff_0000].map(f32::from_bits));
                row.iter_mut().zip(values).for_each(|(weight, value)| *weight = value);
            }
            Format::Int8 | Format::Int4 | Format::Narrow(_) => {
                let scale = scale(scales, output);
                let values = words.flat_map(|word| word.to_le_bytes().map(u8::cast_signed));
                row.iter_mut().zip(values).for_each(|(weight, value)| *weight = f32::from(value) * scale);
            }
        }
    }
}

/// Returns the scale of one of a panel's outputs.
#[inline(always)]
fn scale(scales: &[Line], output: usize) -> f32 {
    f32::from_bits(scales[output / TILE_SIZE].0[output % TILE_SIZE])
}

/// The rows of a panel that are to be quantized to integers and packed.
struct PackIntegers<'a> {
    format: Format,
    panel: &'a mut [Line],
    num_inputs: usize,
    /// `[rows, inputs]`
    rows: &'a [f32],
}

impl Kernel for PackIntegers<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let (scales, steps) = self.panel.split_at_mut(self.format.num_scale_lines(self.num_inputs));
        for (output, row) in self.rows.chunks(self.num_inputs).enumerate() {
            let scale = match self.format {
                Format::Int4 => int4::pack(steps, output, row),
                Format::Int8 | Format::Bf16 | Format::Narrow(_) => pack_int8(steps, output, row),
            };
            scales[output / TILE_SIZE].0[output % TILE_SIZE] = scale.to_bits();
        }
    }
}

/// The rows of a panel that are to be packed as MXFP4.
struct PackMxfp4<'a> {
    panel: &'a mut [Line],
    rows: Chunks<'a, f32>,
}

impl Kernel for PackMxfp4<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for (output, row) in self.rows.enumerate() {
            mxfp4::pack(self.panel, output, row);
        }
    }
}

/// Quantizes the weights of one output to int8, packs them, and returns their scale.
#[inline(always)]
fn pack_int8(steps: &mut [Line], output: usize, row: &[f32]) -> f32 {
    let (scale, inverse) = int8::scale(row);
    let quads = row.chunks(4).map(|weights| {
        let mut bytes = [0; 4];
        bytes.iter_mut().zip(weights).for_each(|(byte, weight)| *byte = int8::round(*weight, inverse));
        u32::from_le_bytes(bytes)
    });
    set_words(steps, output, quads);
    scale
}

#[inline(always)]
fn set_words(steps: &mut [Line], output: usize, words: impl Iterator<Item = u32>) {
    let (first_line, column) = (output / TILE_SIZE * TILE_SIZE, output % TILE_SIZE);
    let mut words = words;
    for step in steps.chunks_exact_mut(STEP_LINES) {
        for line in &mut step[first_line..][..TILE_SIZE] {
            let Some(word) = words.next() else { return };
            line.0[column] = word;
        }
    }
}
