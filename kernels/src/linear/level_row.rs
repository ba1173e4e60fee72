//! Products of a single row with weights of few bits, which are unpacked in registers.
//!
//! Entry point: [`add_products`]. The sums are those that several rows have: see [`Order`].

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, compiler_fence};

use super::blocks::{BlockOfX, GroupNumbers};
use super::level_sums::{Bf16Pairs, Floats, Halves, Integers, LevelSums};
use super::narrow::{Narrow, OfFormat, of_format};
use super::unpacked::{PAIRS, TILES};
use crate::isa::{LANES, Simd};
use crate::lines::{Ahead, BLOCK_COLUMNS, Line, RightSide};

/// The sums of a row for the outputs of a panel.
type Sums = [f32; BLOCK_COLUMNS];

/// The order in which the products of the levels and x of a group are added, if they are bf16.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// In the order of inputs, as in `level_tile`.
    OfInputs,
    /// The even products in order, and so the odd ones, then both, as in `level_dots`.
    OfTiles,
}

/// Adds to `sums` the products of a single row and several panels, interleaved. `rights` are whole panels, heads
/// included.
#[inline(always)]
pub(super) fn add_products<S: Simd, const RIGHTS: usize>(
    simd: S,
    (from, order): (Narrow, Order),
    x: BlockOfX<'_>,
    rights: [RightSide<'_>; RIGHTS],
    sums: [&mut Sums; RIGHTS],
) {
    match order {
        _ if !S::HAS_VECTORS => of_format(simd, from, RowProducts { x, rights, sums, by: PhantomData::<Floats> }),
        _ if !S::HAS_PAIRS => of_format(simd, from, RowProducts { x, rights, sums, by: PhantomData::<Integers> }),
        Order::OfInputs => of_format(simd, from, RowProducts { x, rights, sums, by: PhantomData::<Bf16Pairs> }),
        Order::OfTiles => of_format(simd, from, RowProducts { x, rights, sums, by: PhantomData::<Halves> }),
    }
}

/// The products of a single row and several right-hand sides.
struct RowProducts<'a, D, const RIGHTS: usize> {
    x: BlockOfX<'a>,
    rights: [RightSide<'a>; RIGHTS],
    sums: [&'a mut Sums; RIGHTS],
    by: PhantomData<D>,
}

impl<D: LevelSums, const RIGHTS: usize> OfFormat for RowProducts<'_, D, RIGHTS> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, from: Narrow) {
        let Self { x, rights, sums, by: _ } = self;
        let (step_lines, num_steps) = (from.step_lines(), x.lines.len());
        let mut totals = [[simd.splat(0.0); TILES]; RIGHTS];
        for (totals, sums) in totals.iter_mut().zip(&sums) {
            for (total, sums) in totals.iter_mut().zip(sums.as_chunks().0) {
                *total = simd.load(sums);
            }
        }
        for (step, line) in x.lines.iter().enumerate() {
            let mut halves = [Line([0; LANES]); 2];
            let left = D::left(simd, line, &mut halves);
            let numbers = x.groups.get(step).unwrap_or(&GroupNumbers::NONE);
            for (totals, RightSide { lines, ahead }) in totals.iter_mut().zip(&rights) {
                let (heads, lines) = lines.split_at(lines.len() - num_steps * step_lines);
                let lines = &lines[step * step_lines..][..step_lines];
                // Before the products, because the compiler would move them behind this check of bounds.
                let head = from.head(heads, (step, lines));
                // A constant number of lines, so that each prefetch is one instruction.
                let ahead = Ahead { lines_per_step: step_lines, ..*ahead };
                let of_row = StepOfRow { from, levels: from.levels(lines), left, ahead, step };
                let dots = of_row.dots::<S, D>(simd, numbers);
                for (tile, total) in totals.iter_mut().enumerate() {
                    let scales = from.scales(simd, (head, lines), tile);
                    for half in 0..from.num_scales() {
                        let (dot, (scale, least)) = (D::dots(simd, dots[half][tile]), scales[half]);
                        *total = simd.mul_add(dot, D::scale(simd, scale, numbers), *total);
                        if from.has_least() {
                            *total = simd.mul_add(simd.splat(numbers.sum(half)), least, *total);
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

/// A step of a panel, and its part of a row.
struct StepOfRow<'a> {
    from: Narrow,
    levels: &'a [Line],
    /// The result of [`LevelSums::left`].
    left: &'a [Line],
    ahead: Ahead,
    step: usize,
}

/// The sums of two tiles.
type Dots<D, S> = [<D as LevelSums>::Sums<S>; TILES];

impl StepOfRow<'_> {
    /// Returns the sums of the two halves of the step. If the halves share their scales, both elements are the sums of
    /// the step.
    #[inline(always)]
    fn dots<S: Simd, D: LevelSums>(&self, simd: S, x: &GroupNumbers) -> [Dots<D, S>; 2] {
        let first = [D::start(simd, self.from, x, 0); TILES];
        let second = [D::start(simd, self.from, x, 1); TILES];
        let first = self.add_quarter::<S, D>(simd, 0, first);
        let first = self.add_quarter::<S, D>(simd, 1, first);
        let is_shared = self.from.num_scales() == 1;
        let second = self.add_quarter::<S, D>(simd, 2, if is_shared { first } else { second });
        let second = self.add_quarter::<S, D>(simd, 3, second);
        if is_shared { [second, second] } else { [first, second] }
    }

    /// Adds to `dots` the products of a quarter of the step. The caller passes `quarter` as a constant, so that every
    /// position of a level is one.
    #[inline(always)]
    fn add_quarter<S: Simd, D: LevelSums>(&self, simd: S, quarter: usize, dots: Dots<D, S>) -> Dots<D, S> {
        let first = quarter * PAIRS / 4;
        let dots = self.add_pair::<S, D>(simd, first, dots);
        let dots = self.add_pair::<S, D>(simd, first + 1, dots);
        let dots = self.add_pair::<S, D>(simd, first + 2, dots);
        self.add_pair::<S, D>(simd, first + 3, dots)
    }

    /// Adds to `dots` the products of a pair of inputs.
    #[inline(always)]
    fn add_pair<S: Simd, D: LevelSums>(&self, simd: S, pair: usize, mut dots: Dots<D, S>) -> Dots<D, S> {
        let Self { from, levels, left, ahead, step } = *self;
        // Prefetch few lines at a time, because the processor can have only a few cache misses outstanding.
        let [first, last] = [pair, pair + 1].map(|pair| pair * ahead.lines_per_step / PAIRS);
        ahead.prefetch(simd, step, first..last);
        // The fence makes the compiler read each word when it is used.
        compiler_fence(Ordering::SeqCst);
        for (tile, dots) in dots.iter_mut().enumerate() {
            *dots = D::add(simd, *dots, D::levels(simd, from, (levels, tile), pair), left, pair);
        }
        dots
    }
}
