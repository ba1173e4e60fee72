//! Weights quantized in blocks: GGUF's K and IQ types, and MXFP4.
//!
//! Entry point: [`Narrow`], with the layouts of `mxfp4` and of `levels`. The products of levels and x are added, and
//! the sums multiplied by scales: in `level_row` for a single row, in `level_tile` on vectors and in `level_dots` on
//! tiles. For several rows, `unpacked` unpacks a few steps at a time. Bf16 has all weights of MXFP4, so that tiles
//! multiply these instead of levels, with the same sums.

use numbers::blocks::BlockType;

use super::levels;
use super::mxfp4::{self, MXFP4_STEP_LINES};
use crate::isa::{Kernel, Simd};
use crate::lines::Line;

/// A format of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Narrow {
    /// Floats of 4 bits, in the layout of `mxfp4`.
    Mxfp4,
    /// Blocks, in the layout of `levels`.
    Blocks(BlockType),
}

/// The number of elements of a table of levels.
pub(super) const TABLE_LEN: usize = 64;

/// The scales of a tile's outputs for each half of a group, and the numbers that are added for an x of 1.
pub(super) type Scales<V> = [(V, V); 2];

/// Returns the lowest bit of input `i` of a line in its words. The low halves of words have the even inputs, and the
/// high halves the odd ones, so that one shift reads a pair of inputs.
#[inline(always)]
pub(super) const fn position(i: usize, num_bits: usize) -> usize {
    i / 2 * num_bits + i % 2 * 16
}

/// Some steps of a panel.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a> {
    /// The lines before the first step of the panel.
    pub(super) heads: &'a [Line],
    /// The index of the first of these steps in the panel.
    pub(super) first: usize,
    pub(super) lines: &'a [Line],
}

impl Narrow {
    /// The number of lines of a step of 32 inputs.
    #[inline(always)]
    pub(super) fn step_lines(self) -> usize {
        match self {
            Self::Mxfp4 => MXFP4_STEP_LINES,
            Self::Blocks(kind) => levels::step_lines(kind),
        }
    }

    /// The number of lines before the first step of a panel.
    pub(super) fn num_head_lines(self, num_inputs: usize) -> usize {
        match self {
            Self::Mxfp4 => 0,
            Self::Blocks(kind) => levels::num_head_lines(kind, num_inputs),
        }
    }

    /// The number of scales of an output in a group: 2 if each half has its own.
    #[inline(always)]
    pub(super) fn num_scales(self) -> usize {
        if matches!(self, Self::Blocks(BlockType::Q2_K | BlockType::Q3_K | BlockType::Q6_K)) { 2 } else { 1 }
    }

    /// True if weights have minimums, which are multiplied by the sums of x.
    #[inline(always)]
    pub(super) fn has_least(self) -> bool {
        matches!(self, Self::Blocks(kind) if kind.has_least())
    }

    /// The level among [`Narrow::integers`] that stands for 0.
    #[inline(always)]
    pub(super) fn zero_level(self) -> i32 {
        match self {
            Self::Mxfp4 => 0,
            Self::Blocks(kind) => kind.zero_level() as i32,
        }
    }

    /// Returns the levels of the inputs `2 * pair` and `2 * pair + 1` for the outputs of a tile as bf16, two in each
    /// word, less the level that stands for 0; of MXFP4, twice the floats.
    #[inline(always)]
    pub(super) fn pairs<S: Simd>(self, simd: S, (lines, tile): (&[Line], usize), pair: usize) -> S::Integers {
        match self {
            Self::Mxfp4 => mxfp4::pairs(simd, (lines, tile), pair),
            Self::Blocks(kind) => levels::pairs(simd, kind, (lines, tile), pair),
        }
    }

    /// Returns the levels of the inputs `2 * pair` and `2 * pair + 1` for the outputs of a tile as 16-bit integers, two
    /// in each word; of MXFP4, twice the floats.
    #[inline(always)]
    pub(super) fn integers<S: Simd>(self, simd: S, (lines, tile): (&[Line], usize), pair: usize) -> S::Integers {
        match self {
            Self::Mxfp4 => mxfp4::integers(simd, (lines, tile), pair),
            Self::Blocks(kind) => levels::integers(simd, kind, (lines, tile), pair),
        }
    }

    /// Returns the lines of a step that hold levels.
    #[inline(always)]
    pub(super) fn levels(self, step: &[Line]) -> &[Line] {
        match self {
            Self::Mxfp4 => &step[1..],
            Self::Blocks(kind) => levels::levels(kind, step),
        }
    }

    /// Returns the lines with the heads of the step `idx` of a panel, or with its scales.
    #[inline(always)]
    pub(super) fn head<'a>(self, heads: &'a [Line], (idx, step): (usize, &'a [Line])) -> &'a [Line] {
        match self {
            Self::Mxfp4 => &step[..1],
            Self::Blocks(kind) => levels::head(kind, heads, (idx, step)),
        }
    }

    /// Returns the scales of a tile's outputs in a step.
    #[inline(always)]
    pub(super) fn scales<S: Simd>(self, simd: S, (head, step): (&[Line], &[Line]), tile: usize) -> Scales<S::Vector> {
        match self {
            Self::Mxfp4 => [(simd.widen_bf16_pairs(simd.load_words(&head[0].0))[tile], simd.splat(0.0)); 2],
            Self::Blocks(kind) => levels::scales(simd, kind, (head, step), tile),
        }
    }

    /// Writes the weights of one output of a panel to `row`, as many as `row` holds.
    pub(super) fn copy_row(self, (heads, steps): (&[Line], &[Line]), output: usize, row: &mut [f32]) {
        match self {
            Self::Mxfp4 => mxfp4::copy_row(steps, output, row),
            Self::Blocks(kind) => levels::copy_row(kind, (heads, steps), output, row),
        }
    }
}

/// The formats, in the order of their numbers.
const FORMATS: [Narrow; 1 + BlockType::ALL.len()] = {
    let mut formats = [Narrow::Mxfp4; 1 + BlockType::ALL.len()];
    let mut kind = 0;
    while kind < BlockType::ALL.len() {
        formats[1 + kind] = Narrow::Blocks(BlockType::ALL[kind]);
        kind += 1;
    }
    formats
};

/// Work on weights of one format.
pub(super) trait OfFormat {
    /// Does the work. `from` is a constant for the compiler, which leaves out the code for other formats.
    fn run<S: Simd>(self, simd: S, from: Narrow);
}

/// Work on weights of the format with this number in [`FORMATS`].
struct OfNumber<W, const NUMBER: usize>(W);

/// Work on weights of a format that the compiler does not know.
struct OfAny<W>(W, Narrow);

impl<W: OfFormat, const NUMBER: usize> Kernel for OfNumber<W, NUMBER> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.0.run(simd, const { FORMATS[NUMBER] });
    }
}

impl<W: OfFormat> Kernel for OfAny<W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.0.run(simd, self.1);
    }
}

/// Runs `work` with `from` as a constant, in a function for each format, because a single function for all of them
/// takes longer to compile. If the instruction set has no vectors, there is only one function.
#[inline(always)]
pub(super) fn of_format<S: Simd>(simd: S, from: Narrow, work: impl OfFormat) {
    const { assert!(FORMATS.len() == 13, "each format has an arm below") };
    let number = match from {
        Narrow::Mxfp4 => 0,
        Narrow::Blocks(kind) => 1 + kind as usize,
    };
    match number {
        _ if !S::HAS_VECTORS => simd.call(OfAny(work, from)),
        0 => simd.call_without_vnni(OfNumber::<_, 0>(work)),
        1 => simd.call_without_vnni(OfNumber::<_, 1>(work)),
        2 => simd.call_without_vnni(OfNumber::<_, 2>(work)),
        3 => simd.call_without_vnni(OfNumber::<_, 3>(work)),
        4 => simd.call_without_vnni(OfNumber::<_, 4>(work)),
        5 => simd.call_without_vnni(OfNumber::<_, 5>(work)),
        6 => simd.call_without_vnni(OfNumber::<_, 6>(work)),
        7 => simd.call_without_vnni(OfNumber::<_, 7>(work)),
        8 => simd.call_without_vnni(OfNumber::<_, 8>(work)),
        9 => simd.call_without_vnni(OfNumber::<_, 9>(work)),
        10 => simd.call_without_vnni(OfNumber::<_, 10>(work)),
        11 => simd.call_without_vnni(OfNumber::<_, 11>(work)),
        12 => simd.call_without_vnni(OfNumber::<_, 12>(work)),
        _ => unreachable!("{from:?} has no number"),
    }
}
