//! The layout of x for the register tiles: blocks of a few rows, with the values of all rows adjacent for each input.
//!
//! Entry point: [`RowBlocks`]. A tile reads its block sequentially. If every block has a single row, x is used without
//! a copy.

use std::ops::Range;

use rayon::prelude::*;

use crate::scratch::Scratch;

/// The possible numbers of rows of a block, largest first. Each has a case in `tile::multiply`.
const BLOCK_ROWS: [usize; 7] = [12, 8, 6, 4, 3, 2, 1];

/// The number of values below which waking other threads costs more time than it saves.
const MIN_PARALLEL_VALUES: usize = 1 << 16;

/// Rows of x, divided into blocks.
pub(super) struct RowBlocks<'a> {
    num_inputs: usize,
    rows: Vec<Range<usize>>,
    /// The blocks one after another, each `[inputs, rows of the block]`.
    x: Values<'a>,
}

/// x unchanged, or copied into blocks.
enum Values<'a> {
    Given(&'a [f32]),
    LaidOut(Scratch),
}

/// A block of rows.
pub(super) struct RowBlock<'a> {
    pub(super) num_rows: usize,
    /// `[inputs, num_rows]`
    pub(super) x: &'a [f32],
}

impl<'a> RowBlocks<'a> {
    /// Lays out x `[rows, num_inputs]` in blocks of at most `max_rows` rows.
    pub(super) fn new(x: &'a [f32], num_inputs: usize, max_rows: usize) -> Self {
        let rows = cut(x.len() / num_inputs, max_rows);
        if rows.iter().all(|rows| rows.len() == 1) {
            return Self { num_inputs, rows, x: Values::Given(x) };
        }
        let mut blocked = Scratch::of(x.len()); // [blocks][inputs, rows of the block]
        let mut rest = &mut *blocked;
        let mut blocks = Vec::with_capacity(rows.len());
        for rows in &rows {
            let (block, after) = rest.split_at_mut(rows.len() * num_inputs);
            rest = after;
            blocks.push((&x[rows.start * num_inputs..rows.end * num_inputs], block));
        }
        let is_small = x.len() < MIN_PARALLEL_VALUES;
        let min_blocks = if is_small { blocks.len() } else { 1 };
        blocks.into_par_iter().with_min_len(min_blocks).for_each(|(x, block)| transpose(x, num_inputs, block));
        Self { num_inputs, rows, x: Values::LaidOut(blocked) }
    }

    pub(super) fn num_inputs(&self) -> usize {
        self.num_inputs
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns how many blocks hold `num_rows` rows, starting at block `first`.
    pub(super) fn count_of_rows(&self, first: usize, num_rows: usize) -> usize {
        let end = self.rows[first].start + num_rows;
        self.rows[first..].iter().take_while(|rows| rows.start < end).count()
    }

    pub(super) fn block(&self, idx: usize) -> RowBlock<'_> {
        let Range { start, end } = self.rows[idx];
        let x = match &self.x {
            Values::Given(x) => x,
            Values::LaidOut(x) => &**x,
        };
        RowBlock { num_rows: end - start, x: &x[start * self.num_inputs..end * self.num_inputs] }
    }
}

/// Transposes `[rows, num_inputs]` to `[num_inputs, rows]`.
fn transpose(x: &[f32], num_inputs: usize, to: &mut [f32]) {
    let num_rows = x.len() / num_inputs;
    for (input, values) in to.chunks_exact_mut(num_rows).enumerate() {
        for (row, value) in values.iter_mut().enumerate() {
            *value = x[row * num_inputs + input];
        }
    }
}

fn cut(num_rows: usize, max_rows: usize) -> Vec<Range<usize>> {
    let mut blocks = Vec::new();
    let mut first = 0;
    for block_rows in BLOCK_ROWS.into_iter().filter(|rows| *rows <= max_rows) {
        while num_rows - first >= block_rows {
            blocks.push(first..first + block_rows);
            first += block_rows;
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_cut_largest_first() {
        assert_eq!(cut(27, 12), vec![0..12, 12..24, 24..27]);
        assert_eq!(cut(5, 3), vec![0..3, 3..5]);
        assert_eq!(cut(0, 12), vec![]);
    }

    #[test]
    fn rows_of_a_block_lie_side_by_side() {
        let blocks = RowBlocks::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 2);
        assert_eq!(blocks.block(0).x, [1.0, 3.0, 2.0, 4.0]);
        assert_eq!(blocks.block(1).x, [5.0, 6.0]);
    }
}
