//! y cut into parts that threads compute on their own: some rows, and of these some panels of outputs.
//!
//! Door: [`cut`]. The parts of one row share no element, so each part holds a slice per row.

use super::packed_weight::PANEL_OUTPUTS;

/// The part of y that one thread computes.
pub(super) struct Part<'a> {
    /// Which of the groups of rows.
    pub(super) group: usize,
    pub(super) first_panel: usize,
    /// `[rows of the group][outputs of the panels]`
    pub(super) y_rows: Vec<&'a mut [f32]>,
}

/// Cuts y `[rows, outputs]` into groups of so many rows each, and each of them into parts of `part_panels` panels.
pub(super) fn cut(
    mut y: &mut [f32],
    outputs: usize,
    part_panels: usize,
    group_rows: impl IntoIterator<Item = usize>,
) -> Vec<Part<'_>> {
    let num_panels = outputs.div_ceil(PANEL_OUTPUTS);
    let mut parts = Vec::new();
    for (group, num_rows) in group_rows.into_iter().enumerate() {
        let (rows, rest) = y.split_at_mut(num_rows * outputs);
        y = rest;
        let first_part = parts.len();
        parts.extend((0..num_panels).step_by(part_panels).map(|first_panel| Part {
            group,
            first_panel,
            y_rows: Vec::with_capacity(num_rows),
        }));
        for row in rows.chunks_mut(outputs) {
            let pieces = row.chunks_mut(part_panels * PANEL_OUTPUTS);
            parts[first_part..].iter_mut().zip(pieces).for_each(|(part, piece)| part.y_rows.push(piece));
        }
    }
    parts
}
