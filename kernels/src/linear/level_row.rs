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

/// Adds to `sums` the products of a single row and several panels. The panels take turns pair by pair, so that
/// additions to one sum do not wait for each other. `rights` are whole panels, heads included.
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
            // This is a loop, because the compiler would not inline closures. It stands before the products, because
            // the compiler would move products behind these checks of bounds.
            let mut parts = [(&[] as &[Line], &[] as &[Line]); RIGHTS];
            let mut levels = [&[] as &[Line]; RIGHTS];
            let mut aheads = [Ahead::nothing(&[]); RIGHTS];
            for (right, RightSide { lines, ahead }) in rights.iter().enumerate() {
                let (heads, lines) = lines.split_at(lines.len() - num_steps * step_lines);
                let lines = &lines[step * step_lines..][..step_lines];
                parts[right] = (from.head(heads, (step, lines)), lines);
                levels[right] = from.levels(lines);
                // A constant number of lines, so that each prefetch is one instruction.
                aheads[right] = Ahead { lines_per_step: step_lines, ..*ahead };
            }
            let of_row = StepOfRow { from, levels, left, aheads, step };
            let dots = of_row.dots::<S, D>(simd, numbers);
            for (right, totals) in totals.iter_mut().enumerate() {
                for (tile, total) in totals.iter_mut().enumerate() {
                    let scales = from.scales(simd, parts[right], tile);
                    for half in 0..from.num_scales() {
                        let (dot, (scale, least)) = (D::dots(simd, dots[half][right][tile]), scales[half]);
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

/// A step of some panels, and its part of a row.
struct StepOfRow<'a, const RIGHTS: usize> {
    from: Narrow,
    levels: [&'a [Line]; RIGHTS],
    /// The result of [`LevelSums::left`].
    left: &'a [Line],
    aheads: [Ahead; RIGHTS],
    step: usize,
}

/// The sums of the two tiles of each panel.
type Dots<D, S, const RIGHTS: usize> = [[<D as LevelSums>::Sums<S>; TILES]; RIGHTS];

impl<const RIGHTS: usize> StepOfRow<'_, RIGHTS> {
    /// Returns the sums of the two halves of the step. If the halves share their scales, both elements are the sums of
    /// the step.
    #[inline(always)]
    fn dots<S: Simd, D: LevelSums>(&self, simd: S, x: &GroupNumbers) -> [Dots<D, S, RIGHTS>; 2] {
        let first = [[D::start(simd, self.from, x, 0); TILES]; RIGHTS];
        let second = [[D::start(simd, self.from, x, 1); TILES]; RIGHTS];
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
    fn add_quarter<S: Simd, D: LevelSums>(
        &self,
        simd: S,
        quarter: usize,
        dots: Dots<D, S, RIGHTS>,
    ) -> Dots<D, S, RIGHTS> {
        let first = quarter * PAIRS / 4;
        let dots = self.add_pair::<S, D>(simd, first, dots);
        let dots = self.add_pair::<S, D>(simd, first + 1, dots);
        let dots = self.add_pair::<S, D>(simd, first + 2, dots);
        self.add_pair::<S, D>(simd, first + 3, dots)
    }

    /// Adds to `dots` the products of a pair of inputs.
    #[inline(always)]
    fn add_pair<S: Simd, D: LevelSums>(
        &self,
        simd: S,
        pair: usize,
        mut dots: Dots<D, S, RIGHTS>,
    ) -> Dots<D, S, RIGHTS> {
        let Self { from, levels, left, aheads, step } = *self;
        // Prefetch few lines at a time, because the processor can have only a few cache misses outstanding.
        for ahead in aheads {
            let [first, last] = [pair, pair + 1].map(|pair| pair * ahead.lines_per_step / PAIRS);
            ahead.prefetch(simd, step, first..last);
        }
        // The fence makes the compiler read each word when it is used.
        compiler_fence(Ordering::SeqCst);
        for (dots, levels) in dots.iter_mut().zip(levels) {
            for (tile, dots) in dots.iter_mut().enumerate() {
                *dots = D::add(simd, *dots, D::levels(simd, from, (levels, tile), pair), left, pair);
            }
        }
        dots
    }
}
