//! Equally long vectors, padded with zeros to whole lanes and aligned to cache lines.
//!
//! Door: [`Vectors`]. One piece of attention keeps here its queries, and what they have gathered.

use crate::isa::LANES;

/// Vectors `[num_vectors, len]`.
pub(super) struct Vectors {
    lanes: Vec<Line>,
    lines_per_vector: usize,
}

/// A cache line, and a register of lanes.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line(pub(super) [f32; LANES]);

impl Vectors {
    pub(super) fn zeros(num_vectors: usize, len: usize) -> Self {
        let lines_per_vector = len.div_ceil(LANES);
        Self { lanes: vec![Line([0.0; LANES]); num_vectors * lines_per_vector], lines_per_vector }
    }

    /// Lines of a vector.
    pub(super) fn num_lines(&self) -> usize {
        self.lines_per_vector
    }

    #[inline(always)]
    pub(super) fn of(&self, idx: usize) -> &[Line] {
        &self.lanes[idx * self.lines_per_vector..][..self.lines_per_vector]
    }

    #[inline(always)]
    pub(super) fn of_mut(&mut self, idx: usize) -> &mut [Line] {
        &mut self.lanes[idx * self.lines_per_vector..][..self.lines_per_vector]
    }
}
