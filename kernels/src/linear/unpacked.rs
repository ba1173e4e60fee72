//! Steps of narrow weights, unpacked for products with several rows: scales, then levels.
//!
//! Entry points: [`unpack`] writes steps, [`UnpackedSteps`] reads them; [`unpack_mxfp4`] writes weights. A step is
//! `[2 tiles][2 halves][scales, least numbers][16 outputs]` of f32, then `[2 tiles][16 pairs][parts][16 outputs]` of
//! levels. If the instruction set multiplies pairs of bf16, a pair of inputs has one part, a word with both levels;
//! otherwise it has two, each a level as f32.

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

/// The number of parts of a pair of inputs.
pub(super) const fn num_parts<S: Simd>() -> usize {
    if S::HAS_PAIRS { 1 } else { 2 }
}

/// The number of lines of an unpacked step.
pub(super) const fn unpacked_lines<S: Simd>() -> usize {
    SCALE_LINES + STEP_LINES * num_parts::<S>()
}

/// Unpacks steps to scales and levels in `scratch`.
#[inline(always)]
pub(super) fn unpack<S: Simd>(simd: S, from: Narrow, steps: Steps<'_>, scratch: &mut Vec<Line>) {
    scratch.resize(steps.lines.len() / from.step_lines() * unpacked_lines::<S>(), Line([0; LANES]));
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
pub(super) fn steps<S: Simd>(_simd: S, lines: &[Line]) -> UnpackedSteps<'_> {
    UnpackedSteps(lines.chunks_exact(unpacked_lines::<S>()))
}

/// An iterator over unpacked steps.
pub(super) struct UnpackedSteps<'a>(ChunksExact<'a, Line>);

/// An unpacked step.
#[derive(Clone, Copy)]
pub(super) struct UnpackedStep<'a> {
    scales: &'a [Line],
    /// `[2 tiles][16 pairs][parts]`
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
    /// Returns the scales and the least numbers of a tile's outputs for half of the step.
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
        let unpacked = lines.chunks_exact(from.step_lines()).zip(to.chunks_exact_mut(unpacked_lines::<S>()));
        for (idx, (step, to)) in unpacked.enumerate() {
            let (numbers, to) = to.split_at_mut(SCALE_LINES);
            for tile in 0..TILES {
                let (levels, scales) = (from.levels(step), from.scales(simd, (heads, first + idx), step, tile));
                let numbers = &mut numbers[4 * tile..][..4];
                for (half, (scale, least)) in scales.into_iter().enumerate() {
                    set_floats(simd, scale, &mut numbers[2 * half]);
                    set_floats(simd, least, &mut numbers[2 * half + 1]);
                }
                let num_parts = num_parts::<S>();
                let to = &mut to[tile * PAIRS * num_parts..][..PAIRS * num_parts];
                for (idx, to) in to.iter_mut().enumerate() {
                    if S::HAS_PAIRS {
                        simd.store_words(from.pairs(simd, (levels, tile), idx), &mut to.0);
                    } else {
                        set_floats(simd, from.level(simd, (levels, tile), idx), to);
                    }
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
                let scales = from.scales(simd, (heads, first + idx), step, tile);
                for (pair, to) in to.iter_mut().enumerate() {
                    let (scale, _) = scales[2 * pair / PAIRS];
                    let even = simd.mul(from.level(simd, (levels, tile), 2 * pair), scale);
                    let odd = simd.mul(from.level(simd, (levels, tile), 2 * pair + 1), scale);
                    simd.store_words(simd.pair_floats(even, odd), &mut to.0);
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
pub(super) fn floats<S: Simd>(simd: S, line: &Line) -> S::Vector {
    simd.load(&line.0.map(f32::from_bits))
}
