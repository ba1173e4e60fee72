//! Products of a single row with weights of few bits, which are unpacked in registers.
//!
//! Entry point: [`add_products`]. The sums are those that several rows have: see [`Order`].

use std::sync::atomic::{Ordering, compiler_fence};

use super::blocks::BlockOfX;
use super::narrow::{Narrow, OfFormat, of_format};
use super::unpacked::{PAIRS, TILES, num_parts};
use crate::isa::{LANES, Simd};
use crate::lines::{Ahead, BLOCK_COLUMNS, Line, RightSide};

/// The sums of a row for the outputs of a panel.
type Sums = [f32; BLOCK_COLUMNS];

/// The order in which the products of the levels and x of a group are added.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// In the order of inputs, as in `level_tile`.
    OfInputs,
    /// The even products in order, and so the odd ones, then both, as in `level_dots`.
    OfTiles,
}

/// Adds to `sums` the products of a single row and several panels, interleaved. `rights` are whole panels, heads
/// included. Only instruction sets that multiply pairs of bf16 may add in the order of tiles.
#[inline(always)]
pub(super) fn add_products<S: Simd, const RIGHTS: usize>(
    simd: S,
    (from, order): (Narrow, Order),
    x: BlockOfX<'_>,
    rights: [RightSide<'_>; RIGHTS],
    sums: [&mut Sums; RIGHTS],
) {
    match order {
        Order::OfTiles if S::HAS_PAIRS => of_format(simd, from, RowProducts::<RIGHTS, 2> { x, rights, sums }),
        Order::OfInputs | Order::OfTiles => of_format(simd, from, RowProducts::<RIGHTS, 1> { x, rights, sums }),
    }
}

/// The products of a single row and several right-hand sides. An output has one chain of sums in each group or, in the
/// order of tiles, one of even and one of odd products.
struct RowProducts<'a, const RIGHTS: usize, const CHAINS: usize> {
    x: BlockOfX<'a>,
    rights: [RightSide<'a>; RIGHTS],
    sums: [&'a mut Sums; RIGHTS],
}

impl<const RIGHTS: usize, const CHAINS: usize> OfFormat for RowProducts<'_, RIGHTS, CHAINS> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, from: Narrow) {
        let Self { x, rights, sums } = self;
        let (step_lines, num_scales) = (from.step_lines(), from.num_scales());
        let (num_parts, num_steps) = (num_parts::<S>(), x.lines.len() / num_parts::<S>());
        let mut totals = [[simd.splat(0.0); TILES]; RIGHTS];
        for (totals, sums) in totals.iter_mut().zip(&sums) {
            for (total, sums) in totals.iter_mut().zip(sums.as_chunks().0) {
                *total = simd.load(sums);
            }
        }
        for (step, mut left) in x.lines.chunks_exact(num_parts).enumerate() {
            let halves;
            if CHAINS == 2 {
                let [even, odd] = simd.widen_bf16_pairs(simd.load_words(&left[0].0));
                halves = [even, odd].map(|values| line_of(simd, values));
                // The compiler would keep copies of all values in vectors, and these on the stack.
                left = std::hint::black_box(&halves);
            }
            for (totals, RightSide { lines, ahead }) in totals.iter_mut().zip(rights) {
                let (heads, lines) = lines.split_at(lines.len() - num_steps * step_lines);
                let lines = &lines[step * step_lines..][..step_lines];
                // A constant number of lines, so that each prefetch is one instruction.
                let ahead = Ahead { lines_per_step: step_lines, ..ahead };
                let of_row = StepOfRow::<CHAINS> { from, levels: from.levels(lines), left, ahead, step };
                let dots = [[simd.splat(0.0); CHAINS]; TILES];
                let first = of_row.add_quarter(simd, 0, dots);
                let first = of_row.add_quarter(simd, 1, first);
                let second = of_row.add_quarter(simd, 2, if num_scales == 1 { first } else { dots });
                let second = of_row.add_quarter(simd, 3, second);
                let dots = if num_scales == 1 { [second, second] } else { [first, second] };
                for (tile, total) in totals.iter_mut().enumerate() {
                    let scales = from.scales(simd, (heads, step), lines, tile);
                    for half in 0..num_scales {
                        let (chains, (scale, least)) = (dots[half][tile], scales[half]);
                        let dot = if CHAINS == 2 { simd.add(chains[0], chains[1]) } else { chains[0] };
                        *total = simd.mul_add(dot, scale, *total);
                        if from.takes_sums(S::HAS_PAIRS) {
                            *total = simd.mul_add(simd.splat(x.sums[step][half]), least, *total);
                        }
                    }
                }
            }
        }
        for (totals, sums) in totals.into_iter().zip(sums) {
            for (total, sums) in totals.into_iter().zip(sums.as_chunks_mut().0) {
                simd.store(total, sums);
            }
        }
    }
}

#[inline(always)]
fn line_of<S: Simd>(simd: S, values: S::Vector) -> Line {
    let mut floats = [0.0; LANES];
    simd.store(values, &mut floats);
    Line(floats.map(f32::to_bits))
}

/// A step of a panel, and its part of a row.
struct StepOfRow<'a, const CHAINS: usize> {
    from: Narrow,
    levels: &'a [Line],
    /// A line for each part or, in the order of tiles, the even and the odd inputs as f32.
    left: &'a [Line],
    ahead: Ahead,
    step: usize,
}

/// The sums of two tiles.
type Dots<V, const CHAINS: usize> = [[V; CHAINS]; TILES];

impl<const CHAINS: usize> StepOfRow<'_, CHAINS> {
    /// Adds to `dots` the products of a quarter of the step. The caller passes `quarter` as a constant, so that every
    /// position of a level is one.
    #[inline(always)]
    fn add_quarter<S: Simd>(&self, simd: S, quarter: usize, dots: Dots<S::Vector, CHAINS>) -> Dots<S::Vector, CHAINS> {
        let first = quarter * PAIRS / 4;
        let dots = self.add_pair(simd, first, dots);
        let dots = self.add_pair(simd, first + 1, dots);
        let dots = self.add_pair(simd, first + 2, dots);
        self.add_pair(simd, first + 3, dots)
    }

    /// Adds to `dots` the products of a pair of inputs.
    #[inline(always)]
    fn add_pair<S: Simd>(&self, simd: S, pair: usize, mut dots: Dots<S::Vector, CHAINS>) -> Dots<S::Vector, CHAINS> {
        let Self { from, levels, left, ahead, step } = *self;
        // Prefetch few lines at a time, because the processor can have only a few cache misses outstanding.
        let [first, last] = [pair, pair + 1].map(|pair| pair * ahead.lines_per_step / PAIRS);
        ahead.prefetch(simd, step, first..last);
        // The fence makes the compiler read each word when it is used.
        compiler_fence(Ordering::SeqCst);
        for (tile, chains) in dots.iter_mut().enumerate() {
            if CHAINS == 2 {
                let halves = simd.widen_bf16_pairs(from.pairs(simd, (levels, tile), pair));
                for ((chain, levels), left) in chains.iter_mut().zip(halves).zip(left) {
                    *chain = simd.mul_add(simd.splat(f32::from_bits(left.0[pair])), levels, *chain);
                }
                continue;
            }
            let dots = &mut chains[0];
            if S::HAS_PAIRS {
                *dots = simd.add_bf16_dots(*dots, from.pairs(simd, (levels, tile), pair), left[0].0[pair]);
                continue;
            }
            for (part, left) in left.iter().enumerate() {
                let level = from.level(simd, (levels, tile), 2 * pair + part);
                *dots = simd.mul_add(level, simd.splat(f32::from_bits(left.0[pair])), *dots);
            }
        }
        dots
    }
}
