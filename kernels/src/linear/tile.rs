//! The innermost loops: a few rows times one or more panels, accumulated in registers.
//!
//! Entry point: [`multiply`]. The numbers of rows and panels are chosen for the registers of each instruction set: many
//! independent chains hide the latency of a multiply-add, but too many do not fit. A chain starts from the value in y,
//! so the inputs may be divided into passes at any point.

use std::ops::Range;

use super::packed_weight::{PANEL_OUTPUTS, PANEL_VECTORS, WeightLine};
use crate::isa::{LANES, Simd};
use crate::lines::Line;

/// A group of panels and a row block, for some inputs.
pub(super) struct TileInputs<'a, L> {
    /// `[panels, panel_lines]`
    pub(super) lines: &'a [L],
    pub(super) panel_lines: usize,
    /// The inputs of this pass.
    pub(super) inputs: Range<usize>,
    /// `[inputs of this pass, rows]`
    pub(super) x: &'a [f32],
    pub(super) ahead: Option<LinesAhead<L>>,
}

/// Lines to prefetch: one of each panel for every `inputs_per_line` inputs.
#[derive(Clone, Copy)]
pub(super) struct LinesAhead<L> {
    /// The first line to prefetch of the first panel.
    pub(super) first: *const L,
    /// The number of inputs per prefetched line, a power of two.
    pub(super) inputs_per_line: usize,
}

/// The outputs of a tile: some rows of y, each from its element `first_output` on.
struct TileOutputs<'a, 'y> {
    rows: &'a mut [&'y mut [f32]],
    first_output: usize,
}

/// Adds the products of a row block and a group of panels to the outputs of `y_rows` from `first_output` on.
#[inline(always)]
pub(super) fn multiply<S: Simd, L: WeightLine>(
    simd: S,
    tile: &TileInputs<'_, L>,
    first_output: usize,
    y_rows: &mut [&mut [f32]],
) {
    let y = &mut TileOutputs { rows: y_rows, first_output };
    match y.rows.len() {
        1 if S::NUM_SUMS >= 8 => sweep::<S, L, 1, 4>(simd, tile, y),
        1 if S::NUM_SUMS >= 4 => sweep::<S, L, 1, 2>(simd, tile, y),
        2 if S::NUM_SUMS >= 8 => sweep::<S, L, 2, 2>(simd, tile, y),
        1 => sweep::<S, L, 1, 1>(simd, tile, y),
        2 => sweep::<S, L, 2, 1>(simd, tile, y),
        3 if S::HAS_LONE_COLUMNS => sweep_columns::<S, L, 3>(simd, tile, y),
        4 if S::HAS_LONE_COLUMNS => sweep_columns::<S, L, 4>(simd, tile, y),
        6 if S::HAS_LONE_COLUMNS => sweep_columns::<S, L, 6>(simd, tile, y),
        3 => sweep::<S, L, 3, 1>(simd, tile, y),
        4 => sweep::<S, L, 4, 1>(simd, tile, y),
        6 => sweep::<S, L, 6, 1>(simd, tile, y),
        8 if S::MAX_ROWS >= 8 => sweep::<S, L, 8, 1>(simd, tile, y),
        12 if S::MAX_ROWS >= 12 => sweep::<S, L, 12, 1>(simd, tile, y),
        rows => unreachable!("row blocks have 1, 2, 3, 4, 6, 8 or 12 rows and at most `MAX_ROWS`, not {rows}"),
    }
}

/// Multiplies `PANELS` panels at a time, then the rest one by one.
#[inline(always)]
fn sweep<S: Simd, L: WeightLine, const ROWS: usize, const PANELS: usize>(
    simd: S,
    tile: &TileInputs<'_, L>,
    y: &mut TileOutputs<'_, '_>,
) {
    let num_panels = tile.lines.len() / tile.panel_lines;
    let num_together = num_panels / PANELS * PANELS;
    for panel in (0..num_together).step_by(PANELS) {
        multiply_panels::<S, L, ROWS, PANELS, PANEL_VECTORS>(simd, tile, (panel, 0), y);
    }
    for panel in num_together..num_panels {
        multiply_panels::<S, L, ROWS, 1, PANEL_VECTORS>(simd, tile, (panel, 0), y);
    }
}

/// Multiplies one vector of a panel's outputs at a time, so that more rows can share each widened vector where
/// registers are few.
#[inline(always)]
fn sweep_columns<S: Simd, L: WeightLine, const ROWS: usize>(
    simd: S,
    tile: &TileInputs<'_, L>,
    y: &mut TileOutputs<'_, '_>,
) {
    let num_panels = tile.lines.len() / tile.panel_lines;
    for panel in 0..num_panels {
        multiply_panels::<S, L, ROWS, 1, 1>(simd, tile, (panel, 0), y);
        multiply_panels::<S, L, ROWS, 1, 1>(simd, tile, (panel, 1), y);
    }
}

/// Multiplies `PANELS` panels, `VECTORS` vectors of the outputs of each.
#[inline(always)]
fn multiply_panels<S: Simd, L: WeightLine, const ROWS: usize, const PANELS: usize, const VECTORS: usize>(
    simd: S,
    tile: &TileInputs<'_, L>,
    (first_panel, first_vector): (usize, usize),
    y: &mut TileOutputs<'_, '_>,
) {
    let (x, _) = tile.x.as_chunks::<ROWS>();
    let mut panels = [&tile.lines[..0]; PANELS];
    // The values of y are copied, because the compiler keeps sums in registers only if every loop over them is short.
    let mut outputs = [[[[0.0; LANES]; VECTORS]; PANELS]; ROWS];
    let output_of =
        |panel, vector| y.first_output + (first_panel + panel) * PANEL_OUTPUTS + (first_vector + vector) * LANES;
    for panel in 0..PANELS {
        panels[panel] = &tile.lines[(first_panel + panel) * tile.panel_lines..][tile.inputs.clone()][..x.len()];
        for (outputs, y) in outputs.iter_mut().zip(y.rows.iter()) {
            for (vector, outputs) in outputs[panel].iter_mut().enumerate() {
                let y = &y[outputs_from(output_of(panel, vector), y)];
                outputs[..y.len()].copy_from_slice(y);
            }
        }
    }
    let mut sums = [[[simd.splat(0.0); VECTORS]; PANELS]; ROWS];
    for row in 0..ROWS {
        for panel in 0..PANELS {
            for vector in 0..VECTORS {
                sums[row][panel][vector] = simd.load(&outputs[row][panel][vector]);
            }
        }
    }
    for input in 0..x.len() {
        if let Some(LinesAhead { first, inputs_per_line }) = tile.ahead
            && first_vector == 0
            && input & (inputs_per_line - 1) == 0
        {
            for panel in 0..PANELS {
                let line = (first_panel + panel) * tile.panel_lines + (input >> inputs_per_line.trailing_zeros());
                prefetch(simd, first.wrapping_add(line));
            }
        }
        for panel in 0..PANELS {
            let weights = panels[panel][input].widen(simd);
            for row in 0..ROWS {
                let value = simd.splat(x[input][row]);
                for vector in 0..VECTORS {
                    sums[row][panel][vector] =
                        simd.mul_add(value, weights[first_vector + vector], sums[row][panel][vector]);
                }
            }
        }
    }
    for row in 0..ROWS {
        for panel in 0..PANELS {
            for vector in 0..VECTORS {
                simd.store(sums[row][panel][vector], &mut outputs[row][panel][vector]);
            }
        }
    }
    for (outputs, y) in outputs.iter().zip(y.rows.iter_mut()) {
        for (panel, outputs) in outputs.iter().enumerate() {
            for (vector, outputs) in outputs.iter().enumerate() {
                let range = outputs_from(output_of(panel, vector), y);
                let y = &mut y[range];
                y.copy_from_slice(&outputs[..y.len()]);
            }
        }
    }
}

#[inline(always)]
fn prefetch<S: Simd, L>(simd: S, line: *const L) {
    let line: *const Line = line.cast();
    simd.prefetch(line);
    if size_of::<L>() > size_of::<Line>() {
        simd.prefetch(line.wrapping_add(1));
    }
}

/// Returns the range of up to sixteen outputs from `first` on in a row of y: fewer or none at its end.
#[inline(always)]
fn outputs_from(first: usize, y: &[f32]) -> Range<usize> {
    first.min(y.len())..(first + LANES).min(y.len())
}
