//! A weight matrix packed for the kernels. It is divided into panels of 32 outputs.
//!
//! Entry points: [`PackedWeight`], and [`WeightLine`] for `tile`. A panel of floats has one line of 32 weights for each
//! input, and missing outputs of the last panel are zero. int8, int4 and narrow weights have the layout of
//! `tiled_weight`, and so do bf16 weights where the instruction set multiplies pairs of bf16.

use std::ops::Range;

use half::{bf16, f16};
use numbers::FloatType;
use numbers::blocks::BlockType;
use numbers::floats::{self, Float};
use rayon::prelude::*;

use super::bf16_panel::PackPairsOfOutputs;
use super::narrow::Narrow;
use super::tiled_weight::{Format, TiledWeight};
use crate::isa::{Isa, LANES, Simd, active};
use crate::lines::{Line, Lines, Numbers};

/// The number of vectors that hold the outputs of a panel.
pub(super) const PANEL_VECTORS: usize = 2;
/// The number of outputs of a panel.
pub(super) const PANEL_OUTPUTS: usize = PANEL_VECTORS * LANES;

/// The maximum number of bytes of weights that a thread reads at a time while it packs, unless one panel is larger. It
/// limits the temporary memory.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// A function that passes the stored bytes of some rows of a weight `[outputs, inputs]` to its second argument.
pub type StoredRows<'a> = dyn Fn(Range<usize>, &mut dyn FnMut(&[u8])) + Sync + 'a;

/// The type of the packed weights of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightType {
    /// Single precision.
    F32,
    /// Bfloat16: the upper 16 bits of single precision.
    Bf16,
    /// IEEE half precision.
    F16,
    /// Int8 values from -127 to 127, with a scale per output. x is also quantized to int8, with a scale per row.
    Int8,
    /// Int4 values, with an integer factor per 32 inputs and a scale per output. x is quantized as for `Int8`.
    Int4,
    /// Floats of 4 bits with a power of two per 32 inputs (`numbers::mxfp4`). Products are those of the same numbers in
    /// `Bf16`.
    Mxfp4,
}

/// A weight `[outputs, inputs]` before it is packed: its element type, and a function that reads its rows.
pub(super) struct Stored<'a> {
    pub(super) sizes: [usize; 2],
    pub(super) dtype: FloatType,
    pub(super) rows: &'a StoredRows<'a>,
}

/// A weight matrix in the layout of [`linear`](super::linear).
#[derive(Debug)]
pub struct PackedWeight {
    num_outputs: usize,
    num_inputs: usize,
    panels: Panels,
}

/// The packed weights: lines `[panels, inputs]` of floats, or a tiled weight.
#[derive(Debug)]
pub(super) enum Panels {
    F32(Lines<F32Line>),
    Bf16(Lines<Bf16Line>),
    F16(Lines<F16Line>),
    Tiled(TiledWeight),
}

/// The weights of one input for the outputs of a panel.
pub(super) trait WeightLine: Numbers + Send + Sync {
    /// The type that the stored weights are converted to when they are read.
    type Element: Float;

    /// Packs up to [`PANEL_OUTPUTS`] rows into `panel`.
    fn pack(isa: Isa, panel: &mut [Self], rows: &[Self::Element]);
    fn get(&self, output: usize) -> f32;
    /// Widens the weights of outputs 0 to 15, then of 16 to 31.
    fn widen<S: Simd>(&self, simd: S) -> [S::Vector; PANEL_VECTORS];
}

pub(super) type F32Line = [[f32; LANES]; PANEL_VECTORS];

/// Word i holds output i in its low half and output i + 16 in its high half, so one shift or mask widens sixteen
/// weights.
pub(super) type Bf16Line = Line;

pub(super) type F16Line = [[u16; LANES]; PANEL_VECTORS];

impl Stored<'_> {
    /// Fills `panels`, each `panel_len` long: calls `fill` with each panel and its rows, at most [`PANEL_OUTPUTS`].
    pub(super) fn fill_panels<T: Send, E: Float>(
        &self,
        panels: &mut [T],
        panel_len: usize,
        fill: impl Fn(&mut [T], &[E]) + Sync,
    ) {
        let [num_outputs, num_inputs] = self.sizes;
        let num_weights = PANEL_OUTPUTS * num_inputs;
        let num_panels = (PIECE_BYTES / (num_weights * size_of::<E>())).max(1);
        panels.par_chunks_mut(num_panels * panel_len).enumerate().for_each(|(piece, panels)| {
            let first = piece * num_panels * PANEL_OUTPUTS;
            let last = (first + num_panels * PANEL_OUTPUTS).min(num_outputs);
            (self.rows)(first..last, &mut |bytes| {
                let mut weights = Vec::with_capacity((last - first) * num_inputs);
                floats::read::<E>(bytes, self.dtype, &mut weights);
                let rows_of_panels = weights.chunks(num_weights);
                panels.chunks_mut(panel_len).zip(rows_of_panels).for_each(|(panel, rows)| fill(panel, rows));
            });
        });
    }
}

impl PackedWeight {
    /// Packs the weight `[num_outputs, num_inputs]` of type `stored` as `packed`, on all threads of the current pool,
    /// for the instruction set in use. Each thread reads some of the rows at a time, so that a large weight never has a
    /// second copy.
    ///
    /// # Panics
    /// When a dimension is 0.
    pub fn pack(sizes: [usize; 2], stored: FloatType, packed: WeightType, rows: &StoredRows<'_>) -> Self {
        Self::pack_for(active(), &Stored { sizes, dtype: stored, rows }, packed)
    }

    /// [`PackedWeight::pack`] for a given instruction set.
    pub(super) fn pack_for(isa: Isa, stored: &Stored<'_>, packed: WeightType) -> Self {
        let [num_outputs, num_inputs] = stored.sizes;
        assert!(num_outputs > 0 && num_inputs > 0, "a weight is [{num_outputs}, {num_inputs}]: both must be positive");
        let panels = match packed {
            WeightType::F32 => Panels::F32(pack_lines(isa, stored)),
            WeightType::Bf16 if isa.rounds_to_bf16() => Panels::Tiled(TiledWeight::pack(isa, Format::Bf16, stored)),
            WeightType::Bf16 => Panels::Bf16(pack_lines(isa, stored)),
            WeightType::F16 => Panels::F16(pack_lines(isa, stored)),
            WeightType::Int8 => Panels::Tiled(TiledWeight::pack(isa, Format::Int8, stored)),
            WeightType::Int4 => Panels::Tiled(TiledWeight::pack(isa, Format::Int4, stored)),
            WeightType::Mxfp4 => Panels::Tiled(TiledWeight::pack(isa, Format::Narrow(Narrow::Mxfp4), stored)),
        };
        Self { num_outputs, num_inputs, panels }
    }

    /// Packs the weight `[num_outputs, num_inputs]` that is stored in blocks, on all threads of the current pool. The
    /// weight keeps about the size of the blocks. Products use the weights without rounding, or the nearest bf16 where
    /// tiles multiply them. `rows` passes the bytes of the blocks of some rows.
    ///
    /// # Panics
    /// When a dimension is 0, or `num_inputs` is not a multiple of the length of a block.
    pub fn of_blocks(sizes: [usize; 2], kind: BlockType, rows: &StoredRows<'_>) -> Self {
        let [num_outputs, num_inputs] = sizes;
        assert!(num_outputs > 0 && num_inputs > 0, "a weight is [{num_outputs}, {num_inputs}]: both must be positive");
        assert!(num_inputs.is_multiple_of(kind.block_len()), "{num_inputs} inputs in blocks of {}", kind.block_len());
        Self { num_outputs, num_inputs, panels: Panels::Tiled(TiledWeight::of_blocks(sizes, kind, rows)) }
    }

    /// Returns the memory of [`PackedWeight::of_blocks`] in bytes, including padding.
    pub fn bytes_of_blocks(sizes: [usize; 2], kind: BlockType) -> usize {
        TiledWeight::bytes_of_blocks(sizes, kind)
    }

    /// The number of outputs: the width of y.
    pub fn num_outputs(&self) -> usize {
        self.num_outputs
    }

    /// The number of inputs: the width of x.
    pub fn num_inputs(&self) -> usize {
        self.num_inputs
    }

    /// The memory of the packed weight in bytes, including padding.
    pub fn size_bytes(&self) -> usize {
        match &self.panels {
            Panels::F32(lines) => size_of_val(&**lines),
            Panels::Bf16(lines) => size_of_val(&**lines),
            Panels::F16(lines) => size_of_val(&**lines),
            Panels::Tiled(tiles) => tiles.size_bytes(),
        }
    }

    /// Writes the weights of one output to `row` `[num_inputs]`. If the embedding and the output layer share a weight,
    /// this is the embedding of a token.
    ///
    /// # Panics
    /// When `output` is out of range or the length of `row` is not `num_inputs`.
    pub fn copy_row(&self, output: usize, row: &mut [f32]) {
        let (outputs, inputs) = (self.num_outputs, self.num_inputs);
        assert!(output < outputs, "output {output} of a weight with {outputs} outputs");
        assert_eq!(row.len(), inputs, "row holds {} values, not {inputs} inputs", row.len());
        match &self.panels {
            Panels::F32(lines) => copy_row(lines, output, row),
            Panels::Bf16(lines) => copy_row(lines, output, row),
            Panels::F16(lines) => copy_row(lines, output, row),
            Panels::Tiled(tiles) => tiles.copy_row(output, row),
        }
    }

    pub(super) fn panels(&self) -> &Panels {
        &self.panels
    }

    /// Returns the format of a tiled weight, or `None` if the weight is multiplied as lines of floats.
    pub(super) fn tiled_format(&self) -> Option<Format> {
        match &self.panels {
            Panels::Tiled(weight) => Some(weight.format()),
            Panels::F32(_) | Panels::Bf16(_) | Panels::F16(_) => None,
        }
    }
}

impl WeightLine for F32Line {
    type Element = f32;

    fn pack(_isa: Isa, panel: &mut [Self], rows: &[f32]) {
        set_outputs(panel, rows, |line, output, weight| line[output / LANES][output % LANES] = weight);
    }

    fn get(&self, output: usize) -> f32 {
        self[output / LANES][output % LANES]
    }

    #[inline(always)]
    fn widen<S: Simd>(&self, simd: S) -> [S::Vector; PANEL_VECTORS] {
        [simd.load(&self[0]), simd.load(&self[1])]
    }
}

impl WeightLine for Bf16Line {
    type Element = bf16;

    fn pack(isa: Isa, panel: &mut [Self], rows: &[bf16]) {
        isa.run(PackPairsOfOutputs { panel, rows });
    }

    fn get(&self, output: usize) -> f32 {
        let pair = self.0[output % LANES];
        f32::from_bits(if output < LANES { pair << 16 } else { pair & 0xffff_0000 })
    }

    #[inline(always)]
    fn widen<S: Simd>(&self, simd: S) -> [S::Vector; PANEL_VECTORS] {
        simd.widen_bf16_pairs(simd.load_words(&self.0))
    }
}

impl WeightLine for F16Line {
    type Element = f16;

    fn pack(_isa: Isa, panel: &mut [Self], rows: &[f16]) {
        set_outputs(panel, rows, |line, output, weight| line[output / LANES][output % LANES] = weight.to_bits());
    }

    fn get(&self, output: usize) -> f32 {
        f16::from_bits(self[output / LANES][output % LANES]).to_f32()
    }

    #[inline(always)]
    fn widen<S: Simd>(&self, simd: S) -> [S::Vector; PANEL_VECTORS] {
        [simd.widen_f16(&self[0]), simd.widen_f16(&self[1])]
    }
}

fn pack_lines<L: WeightLine>(isa: Isa, stored: &Stored<'_>) -> Lines<L> {
    let [num_outputs, num_inputs] = stored.sizes;
    let mut lines = Lines::of_weight(num_outputs.div_ceil(PANEL_OUTPUTS) * num_inputs); // [panels, inputs]
    stored.fill_panels(&mut lines, num_inputs, |panel, rows| L::pack(isa, panel, rows));
    lines
}

/// Passes each weight of some rows to `set`, with its line and its output.
fn set_outputs<L, E: Copy>(panel: &mut [L], rows: &[E], set: impl Fn(&mut L, usize, E)) {
    for (output, row) in rows.chunks(panel.len()).enumerate() {
        panel.iter_mut().zip(row).for_each(|(line, weight)| set(line, output, *weight));
    }
}

fn copy_row<L: WeightLine>(lines: &[L], output: usize, row: &mut [f32]) {
    let panel = &lines[output / PANEL_OUTPUTS * row.len()..][..row.len()];
    for (weight, line) in row.iter_mut().zip(panel) {
        *weight = line.get(output % PANEL_OUTPUTS);
    }
}
