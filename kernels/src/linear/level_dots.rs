//! Products of several rows with weights of few bits on AMX tiles: tiles add the products of the levels and x of a
//! group, then vectors multiply these dot products by scales.
//!
//! Entry point: [`add_product`]. In each group, the even products are summed in order, and so are the odd ones, then
//! both. As in `level_tile`, weights are never rounded.

use std::cell::Cell;

use super::blocks::BlockOfX;
use super::narrow::Narrow;
use super::unpacked::{self, TILES, UNPACKED_LINES, UnpackedStep};
use crate::isa::{Kernel, LANES, Simd, Tiles};
use crate::lines::{BLOCK_COLUMNS, BLOCK_ROWS, Block, Line, RightSide};

/// The number of blocks of dot products that vectors add to the sums at once, so that each sum is loaded once for all
/// of them: a few steps of the right-hand side, or half as many if a step has two scales.
const NUM_DOTS: usize = 4;

thread_local! {
    /// The buffer for dot products, which is kept for reuse.
    static DOTS: Cell<Vec<Block<f32>>> = const { Cell::new(Vec::new()) };
}

/// Adds to `sums` `[rows, 32]` the products of `num_rows` rows of x and the unpacked steps `right`, and prefetches
/// `right.ahead`.
#[inline(always)]
pub(super) fn add_product<S: Simd>(
    simd: S,
    (from, tiles): (Narrow, &Tiles),
    (x, num_rows): (BlockOfX<'_>, usize),
    right: RightSide<'_>,
    sums: &mut Block<f32>,
) {
    simd.call(TileProduct { from, tiles, x, num_rows, right, sums });
}

struct TileProduct<'a> {
    from: Narrow,
    tiles: &'a Tiles,
    x: BlockOfX<'a>,
    num_rows: usize,
    right: RightSide<'a>,
    sums: &'a mut Block<f32>,
}

impl Kernel for TileProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut dots = DOTS.take();
        dots.resize(NUM_DOTS, Block([[0.0; BLOCK_COLUMNS]; BLOCK_ROWS]));
        let num_scales = self.from.num_scales();
        let batch_steps = NUM_DOTS / num_scales;
        for (batch, lines) in self.right.lines.chunks(batch_steps * UNPACKED_LINES).enumerate() {
            let first_step = batch * batch_steps;
            for (idx, step) in unpacked::steps(lines).enumerate() {
                let (ahead, step_idx) = (self.right.ahead, first_step + idx);
                ahead.prefetch(simd, step_idx, 0..ahead.lines_per_step);
                let left = &self.x.lines[step_idx * self.num_rows..][..self.num_rows];
                for half in 0..num_scales {
                    self.tiles.bf16_dots(left, step.levels, half, &mut dots[idx * num_scales + half]);
                }
            }
            if lines.len() == batch_steps * UNPACKED_LINES {
                self.add_scaled::<S, NUM_DOTS>(simd, (first_step, lines), &dots);
                continue;
            }
            for (idx, lines) in lines.chunks(UNPACKED_LINES).enumerate() {
                let (first_step, dots) = (first_step + idx, &dots[idx * num_scales..]);
                if num_scales == 1 {
                    self.add_scaled::<S, 1>(simd, (first_step, lines), dots);
                } else {
                    self.add_scaled::<S, 2>(simd, (first_step, lines), dots);
                }
            }
        }
        DOTS.set(dots);
    }
}

impl TileProduct<'_> {
    /// Adds to the sums `COUNT` blocks of dot products, multiplied by the scales in `lines`, and the minimums
    /// multiplied by the sums of x.
    #[inline(always)]
    fn add_scaled<S: Simd, const COUNT: usize>(
        &mut self,
        simd: S,
        (first_step, lines): (usize, &[Line]),
        dots: &[Block<f32>],
    ) {
        let num_scales = self.from.num_scales();
        let has_least = self.from.has_least();
        let dots = dots.first_chunk::<COUNT>().expect("there are dot products for each scale");
        let mut scales = [[(simd.splat(0.0), simd.splat(0.0)); COUNT]; TILES];
        for (idx, step) in unpacked::steps(lines).enumerate() {
            for half in 0..num_scales {
                for (tile, scales) in scales.iter_mut().enumerate() {
                    scales[idx * num_scales + half] = UnpackedStep::scales(step, simd, tile, half);
                }
            }
        }
        for (row, sums) in self.sums.0.iter_mut().enumerate().take(self.num_rows) {
            let mut x_sums = [0.0; COUNT];
            if has_least {
                for (idx, x_sum) in x_sums.iter_mut().enumerate() {
                    let step = first_step + idx / num_scales;
                    *x_sum = self.x.groups[step * self.num_rows + row].sum(idx % num_scales);
                }
            }
            for (tile, (to, scales)) in sums.as_chunks_mut::<LANES>().0.iter_mut().zip(&scales).enumerate() {
                let mut sum = simd.load(to);
                for ((dots, (scale, least)), x_sum) in dots.iter().zip(scales).zip(x_sums) {
                    sum = simd.mul_add(simd.load(&dots.0[row].as_chunks().0[tile]), *scale, sum);
                    if has_least {
                        sum = simd.mul_add(simd.splat(x_sum), *least, sum);
                    }
                }
                simd.store(sum, to);
            }
        }
    }
}
