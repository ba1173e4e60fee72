//! Steps of narrow weights, unpacked for products with several rows: scales, then levels.
//!
//! Entry points: [`unpack`] writes steps, [`UnpackedSteps`] reads them; [`unpack_mxfp4`] writes weights. A step begins
//! with scales and minimums in f32, `[2 tiles][2 halves][2][16 outputs]`. Its levels follow,
//! `[2 tiles][16 pairs][16 outputs]`. Each word holds the two levels of a pair of inputs, in bf16 if the instruction
//! set multiplies pairs of bf16, otherwise as 16-bit integers.

use std::slice::ChunksExact;

use super::narrow::{Narrow, OfFormat, Steps, of_format};
use crate::isa::{Kernel, LANES, Simd};
use crate::lines::{BLOCK_COLUMNS, Line, STEP_LINES, TILE_SIZE};

/// The number of tiles of a panel.
pub(super) const TILES: usize = BLOCK_COLUMNS / LANES;
/// The number of pairs of inputs of a step.
pub(super) const PAIRS: usize = TILE_SIZE;
/// The number of lines of scales in a step.
const SCALE_LINES: usize = TILES * 4;

/// The number of lines of an unpacked step.
pub(super) const UNPACKED_LINES: usize = SCALE_LINES + STEP_LINES;

/// Unpacks steps to scales and levels in `scratch`.
#[inline(always)]
pub(super) fn unpack<S: Simd>(simd: S, from: Narrow, steps: Steps<'_>, scratch: &mut Vec<Line>) {
    scratch.resize(steps.lines.len() / from.step_lines() * UNPACKED_LINES, Line([0; LANES]));
    of_format(simd, from, Unpack { steps, to: scratch });
}

/// Unpacks steps of MXFP4 to weights in bf16, `[steps][2 tiles][16 pairs of inputs][16 outputs]`, in `scratch`. The
/// instruction set must multiply pairs of bf16.
#[inline(always)]
pub(super) fn unpack_mxfp4<S: Simd>(simd: S, steps: Steps<'_>, scratch: &mut Vec<Line>) {
    scratch.resize(steps.lines.len() / Narrow::Mxfp4.step_lines() * STEP_LINES, Line([0; LANES]));
    simd.call(UnpackMxfp4 { steps, to: scratch });
}

/// Returns the steps in `lines`.
#[inline(always)]
pub(super) fn steps(lines: &[Line]) -> UnpackedSteps<'_> {
    UnpackedSteps(lines.chunks_exact(UNPACKED_LINES))
}

/// An iterator over unpacked steps.
pub(super) struct UnpackedSteps<'a>(ChunksExact<'a, Line>);

/// An unpacked step.
#[derive(Clone, Copy)]
pub(super) struct UnpackedStep<'a> {
    scales: &'a [Line],
    /// `[2 tiles][16 pairs]`
    pub(super) levels: &'a [Line],
}

impl<'a> Iterator for UnpackedSteps<'a> {
    type Item = UnpackedStep<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<UnpackedStep<'a>> {
        let (scales, levels) = self.0.next()?.split_at(SCALE_LINES);
        Some(UnpackedStep { scales, levels })
    }
}

impl UnpackedStep<'_> {
    /// Returns the scales and the minimums of a tile's outputs for half of the step.
    #[inline(always)]
    pub(super) fn scales<S: Simd>(self, simd: S, tile: usize, half: usize) -> (S::Vector, S::Vector) {
        let first = 4 * tile + 2 * half;
        (floats(simd, &self.scales[first]), floats(simd, &self.scales[first + 1]))
    }
}

struct Unpack<'a> {
    steps: Steps<'a>,
    to: &'a mut [Line],
}

impl OfFormat for Unpack<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, from: Narrow) {
        let Self { steps: Steps { heads, first, lines }, to } = self;
        let unpacked = lines.chunks_exact(from.step_lines()).zip(to.chunks_exact_mut(UNPACKED_LINES));
        for (idx, (step, to)) in unpacked.enumerate() {
            let (numbers, to) = to.split_at_mut(SCALE_LINES);
            for tile in 0..TILES {
                let head = from.head(heads, (first + idx, step));
                let (levels, scales) = (from.levels(step), from.scales(simd, (head, step), tile));
                let numbers = &mut numbers[4 * tile..][..4];
                for (half, (scale, least)) in scales.into_iter().enumerate() {
                    set_floats(simd, scale, &mut numbers[2 * half]);
                    set_floats(simd, least, &mut numbers[2 * half + 1]);
                }
                for (pair, to) in to[tile * PAIRS..][..PAIRS].iter_mut().enumerate() {
                    let levels = if S::HAS_PAIRS {
                        from.pairs(simd, (levels, tile), pair)
                    } else {
                        from.integers(simd, (levels, tile), pair)
                    };
                    simd.store_words(levels, &mut to.0);
                }
            }
        }
    }
}

struct UnpackMxfp4<'a> {
    steps: Steps<'a>,
    to: &'a mut [Line],
}

impl Kernel for UnpackMxfp4<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (from, Self { steps: Steps { heads, first, lines }, to }) = (Narrow::Mxfp4, self);
        let unpacked = lines.chunks_exact(from.step_lines()).zip(to.chunks_exact_mut(STEP_LINES));
        for (idx, (step, to)) in unpacked.enumerate() {
            let levels = from.levels(step);
            for (tile, to) in to.chunks_exact_mut(PAIRS).enumerate() {
                let scales = from.scales(simd, (from.head(heads, (first + idx, step)), step), tile);
                for (pair, to) in to.iter_mut().enumerate() {
                    let (scale, _) = scales[2 * pair / PAIRS];
                    let [even, odd] = simd.widen_bf16_pairs(from.pairs(simd, (levels, tile), pair));
                    let weights = simd.pair_floats(simd.mul(even, scale), simd.mul(odd, scale));
                    simd.store_words(weights, &mut to.0);
                }
            }
        }
    }
}

#[inline(always)]
fn set_floats<S: Simd>(simd: S, vector: S::Vector, line: &mut Line) {
    let mut floats = [0.0; LANES];
    simd.store(vector, &mut floats);
    line.0 = floats.map(f32::to_bits);
}

/// Returns the numbers of a line.
#[inline(always)]
fn floats<S: Simd>(simd: S, line: &Line) -> S::Vector {
    simd.load(&line.0.map(f32::from_bits))
}
