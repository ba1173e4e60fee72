//! Packing of bf16 panels: sixteen rows of the checkpoint at a time become columns.
//!
//! Entry points: [`PackPairsOfOutputs`] for `tile`, [`PackPairsOfInputs`] for `tiled`.

use half::bf16;

use super::packed_weight::PANEL_OUTPUTS;
use crate::isa::{Kernel, LANES, Simd};
use crate::lines::{Line, STEP_LINES, TILE_SIZE};

/// The number of inputs of a row that a cache line holds.
const LINE_INPUTS: usize = size_of::<Line>() / size_of::<bf16>();

/// Sixteen words of each of sixteen outputs.
type Words = [Line; LANES];

/// Packs up to 32 rows `[outputs, inputs]` as `[inputs][16 words]`: word i holds output i in its low half and output
/// i + 16 in its high half.
pub(super) struct PackPairsOfOutputs<'a> {
    pub(super) panel: &'a mut [Line],
    pub(super) rows: &'a [bf16],
}

/// Packs up to 32 rows `[outputs, inputs]` as `[steps of 32 inputs][2 tiles][16 pairs of inputs][16 outputs]`.
pub(super) struct PackPairsOfInputs<'a> {
    pub(super) panel: &'a mut [Line],
    pub(super) rows: &'a [bf16],
    pub(super) num_inputs: usize,
}

impl Kernel for PackPairsOfOutputs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let num_inputs = self.panel.len();
        for (idx, lines) in self.panel.chunks_mut(LINE_INPUTS).enumerate() {
            let mut halves = [[Line([0; LANES]); LANES]; LINE_INPUTS / LANES];
            for (output, row) in self.rows.chunks(num_inputs).enumerate() {
                let inputs = inputs_of_line(row, idx);
                let shift = if output < LANES { 0 } else { 16 };
                for (words, inputs) in halves.iter_mut().zip(inputs.as_chunks::<LANES>().0) {
                    for (word, input) in words[output % LANES].0.iter_mut().zip(inputs) {
                        *word |= u32::from(input.to_bits()) << shift;
                    }
                }
            }
            for (lines, words) in lines.chunks_mut(LANES).zip(&halves) {
                write_columns(simd, words, lines);
            }
        }
    }
}

impl Kernel for PackPairsOfInputs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (idx, step) in self.panel.chunks_mut(STEP_LINES).enumerate() {
            let mut tiles = [[Line([0; LANES]); TILE_SIZE]; PANEL_OUTPUTS / TILE_SIZE];
            for (output, row) in self.rows.chunks(self.num_inputs).enumerate() {
                let inputs = inputs_of_line(row, idx);
                let words = &mut tiles[output / TILE_SIZE][output % TILE_SIZE];
                for (word, pair) in words.0.iter_mut().zip(inputs.as_chunks::<2>().0) {
                    *word = u32::from(pair[1].to_bits()) << 16 | u32::from(pair[0].to_bits());
                }
            }
            for (lines, words) in step.chunks_mut(TILE_SIZE).zip(&tiles) {
                write_columns(simd, words, lines);
            }
        }
    }
}

/// Returns the inputs of a row for line `idx`, padded with zeros at the end of the row.
#[inline(always)]
fn inputs_of_line(row: &[bf16], idx: usize) -> [bf16; LINE_INPUTS] {
    let inputs = &row[idx * LINE_INPUTS..];
    match inputs.first_chunk() {
        Some(inputs) => *inputs,
        None => {
            let mut padded = [bf16::ZERO; LINE_INPUTS];
            padded[..inputs.len()].copy_from_slice(inputs);
            padded
        }
    }
}

/// Writes word k of each output to line k. If there are fewer lines than words, the other words are dropped.
#[inline(always)]
fn write_columns<S: Simd>(simd: S, words: &Words, lines: &mut [Line]) {
    match lines.first_chunk_mut() {
        Some(lines) => simd.transpose(words, lines),
        None => {
            let mut all = [Line([0; LANES]); LANES];
            simd.transpose(words, &mut all);
            lines.copy_from_slice(&all[..lines.len()]);
        }
    }
}
