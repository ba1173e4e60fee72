//! Weights of few bits that are multiplied as bf16: a few steps at a time become lines of bf16.
//!
//! Entry point: [`Narrow`], with the layouts of `mxfp4` and of `levels`.

use numbers::blocks::BlockType;

use super::levels;
use super::mxfp4::{self, MXFP4_STEP_LINES};
use crate::isa::{LANES, Simd};
use crate::lines::{Line, STEP_LINES};

/// A format of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Narrow {
    /// Floats of 4 bits, in the layout of `mxfp4`.
    Mxfp4,
    /// Blocks, in the layout of `levels`.
    Blocks(BlockType),
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

    /// Unpacks steps to pairs of bf16, `[steps][2 tiles][16 pairs of inputs][16 outputs]`, in `scratch`.
    #[inline(always)]
    pub(super) fn unpack<S: Simd>(self, simd: S, steps: Steps<'_>, scratch: &mut Vec<Line>) {
        scratch.resize(steps.lines.len() / self.step_lines() * STEP_LINES, Line([0; LANES]));
        let unpacked = steps.lines.chunks_exact(self.step_lines()).zip(scratch.chunks_exact_mut(STEP_LINES));
        match self {
            Self::Mxfp4 => {
                for (step, to) in unpacked {
                    mxfp4::unpack_step(step, to);
                }
            }
            Self::Blocks(kind) => {
                for (idx, (step, to)) in unpacked.enumerate() {
                    levels::unpack_step(simd, kind, (steps.heads, steps.first + idx), step, to);
                }
            }
        }
    }

    /// Unpacks a panel to a line for each of its inputs, as `packed_weight` has them for bf16.
    #[inline(always)]
    pub(super) fn unpack_panel<S: Simd>(self, simd: S, (heads, steps): (&[Line], &[Line]), to: &mut [Line]) {
        match self {
            Self::Mxfp4 => simd.call(mxfp4::UnpackPanel { steps, to }),
            Self::Blocks(kind) => simd.call(levels::UnpackPanel { kind, heads, steps, to }),
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
