//! Cuts an output matrix into parts that threads compute independently. A part is a group of rows, limited to a range
//! of panels (groups of columns).
//!
//! Entry point: [`cut`]. Parts share no element, so each part holds a mutable slice per row.

/// A part of the output matrix, computed by one task.
pub(super) struct Part<'a, T> {
    /// The index of the group of rows.
    pub(super) group: usize,
    pub(super) first_panel: usize,
    pub(super) num_panels: usize,
    /// `[rows of the group][panels]`
    pub(super) rows: Vec<&'a mut [T]>,
}

/// The panels of a row, and the size of the parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct PanelCut {
    /// The number of elements of a row per panel.
    pub(super) panel_len: usize,
    /// The number of panels of a row. Their total length may differ a little from that of the row.
    pub(super) num_panels: usize,
    /// The maximum number of panels of a part. Only the last part of a row may have fewer.
    pub(super) part_panels: usize,
}

/// Divides a matrix of rows of `row_len` elements into groups of `group_rows` rows, and each group into parts.
pub(super) fn cut<T>(
    mut elements: &mut [T],
    row_len: usize,
    panels: PanelCut,
    group_rows: impl IntoIterator<Item = usize>,
) -> Vec<Part<'_, T>> {
    let PanelCut { panel_len, num_panels, part_panels } = panels;
    let mut parts = Vec::new();
    for (group, num_rows) in group_rows.into_iter().enumerate() {
        let (rows, rest) = elements.split_at_mut(num_rows * row_len);
        elements = rest;
        let first_part = parts.len();
        parts.extend((0..num_panels).step_by(part_panels).map(|first_panel| Part {
            group,
            first_panel,
            num_panels: part_panels.min(num_panels - first_panel),
            rows: Vec::with_capacity(num_rows),
        }));
        for row in rows.chunks_mut(row_len) {
            let pieces = row.chunks_mut(part_panels * panel_len);
            parts[first_part..].iter_mut().zip(pieces).for_each(|(part, piece)| part.rows.push(piece));
        }
    }
    parts
}
