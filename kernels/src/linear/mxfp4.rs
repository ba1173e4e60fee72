//! The layout of MXFP4 weights in cache lines, and their conversion to bf16, which is exact. `numbers::mxfp4` defines
//! the format.
//!
//! Entry points: [`pack`], [`copy_row`], and [`pairs`] and [`integers`] for products.
//!
//! A step has 32 inputs, which are a block, and 32 outputs. It is stored as a line of 16 words for the scales, then
//! lines for the floats, `[2 tiles][4][16 outputs]`. Word i of the scales has two bf16 numbers: half of the scale of
//! output i in its low half, and half of the scale of output i + 16 in its high half. A word of the floats in line i
//! has the inputs 8i to 8i + 7 of an output, at the positions of `narrow::position`.

use half::bf16;
use numbers::mxfp4::{self, BLOCK};

use super::narrow::{TABLE_LEN, position};
use crate::isa::{HalfBits, LANES, Simd};
use crate::lines::{Line, TILE_SIZE};

/// The number of lines of floats of a tile.
const TILE_LINES: usize = BLOCK / WORD_FLOATS;
/// The number of floats in a word.
const WORD_FLOATS: usize = 8;
/// The number of lines of a step.
pub(super) const MXFP4_STEP_LINES: usize = 1 + 2 * TILE_LINES;
/// Twice the magnitude of each float without sign, four bits each, the first in the lowest bits.
const DOUBLED: u32 = 0xc864_3210;

/// Twice each float.
static FLOATS: [i8; 16] = {
    let mut floats = [0; 16];
    let mut i = 0;
    while i < 8 {
        let magnitude = (DOUBLED >> (4 * i) & 15) as i8;
        (floats[i], floats[8 + i]) = (magnitude, -magnitude);
        i += 1;
    }
    floats
};

/// [`FLOATS`] as bf16, with a sign for 0 too. The table repeats them up to its length.
static TABLE: [u16; TABLE_LEN] = {
    let mut table = [0; TABLE_LEN];
    let mut i = 0;
    while i < TABLE_LEN {
        let magnitude = FLOATS[i % 8] as f32;
        table[i] = (magnitude.to_bits() >> 16) as u16 | (i as u16 % 16 / 8) << 15;
        i += 1;
    }
    table
};

/// Writes `row`, the weights of output `output`, into the panel's steps.
#[inline(always)]
pub(super) fn pack(steps: &mut [Line], output: usize, row: &[f32]) {
    let (tile, column) = (output / TILE_SIZE, output % TILE_SIZE);
    for (step, weights) in steps.chunks_exact_mut(MXFP4_STEP_LINES).zip(row.chunks(BLOCK)) {
        let (scale, floats) = mxfp4::round_block(weights);
        let half = u32::from(bf16::from_f32(mxfp4::scale(scale) / 2.0).to_bits());
        step[0].0[column] |= half << (16 * tile);
        for (line, floats) in step[1 + tile * TILE_LINES..].iter_mut().zip(floats.as_chunks::<WORD_FLOATS>().0) {
            let mut word = 0;
            for (idx, float) in floats.iter().enumerate() {
                word |= u32::from(*float) << position(idx, 4);
            }
            line.0[column] = word;
        }
    }
}

/// Writes the weights of one output from `steps` to `row`, as many as `row` holds.
pub(super) fn copy_row(steps: &[Line], output: usize, row: &mut [f32]) {
    let (tile, column) = (output / TILE_SIZE, output % TILE_SIZE);
    for (step, row) in steps.chunks_exact(MXFP4_STEP_LINES).zip(row.chunks_mut(BLOCK)) {
        let half = halves(&step[0], tile)[column];
        for (line, row) in step[1 + tile * TILE_LINES..].iter().zip(row.chunks_mut(WORD_FLOATS)) {
            for (idx, weight) in row.iter_mut().enumerate() {
                *weight = mxfp4::number((line.0[column] >> position(idx, 4)) as u8 & 0xf) * 2.0 * half;
            }
        }
    }
}

/// Returns twice the floats of the inputs `2 * pair` and `2 * pair + 1`, as bf16, from the lines without scales.
#[inline(always)]
pub(super) fn pairs<S: Simd>(simd: S, (lines, tile): (&[Line], usize), pair: usize) -> S::Integers {
    let HalfBits { words, shift, .. } = bits((lines, tile), pair);
    simd.look_up((words, shift), None, &TABLE)
}

/// Returns the same numbers as 16-bit integers.
#[inline(always)]
pub(super) fn integers<S: Simd>(simd: S, (lines, tile): (&[Line], usize), pair: usize) -> S::Integers {
    simd.look_up_integers(bits((lines, tile), pair), &FLOATS)
}

/// Returns the bits of the inputs `2 * pair` and `2 * pair + 1`.
#[inline(always)]
fn bits((lines, tile): (&[Line], usize), pair: usize) -> HalfBits<'_> {
    let (line, input) = (&lines[tile * TILE_LINES + 2 * pair / WORD_FLOATS], 2 * pair % WORD_FLOATS);
    HalfBits { words: &line.0, shift: position(input, 4), num_bits: 4 }
}

/// Returns half of the scale of each output of a tile.
#[inline(always)]
fn halves(scales: &Line, tile: usize) -> [f32; LANES] {
    let mut halves = [0.0; LANES];
    for (half, word) in halves.iter_mut().zip(scales.0) {
        *half = f32::from_bits(word >> (16 * tile) << 16);
    }
    halves
}
