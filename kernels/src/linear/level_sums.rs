//! Ways to add the products of levels and x.
//!
//! Entry point: [`LevelSums`]. [`Integers`] multiplies 16-bit integers, and [`Floats`] does so as f32 where there are
//! no vectors. [`Bf16Pairs`] multiplies bf16, and [`Halves`] does so for a single row in the order of tiles.

use super::blocks::GroupNumbers;
use super::narrow::Narrow;
use crate::isa::{LANES, Simd, integers_of};
use crate::lines::Line;

/// A way to add the products of the levels of a tile's outputs and x, group by group.
pub(super) trait LevelSums {
    type Sums<S: Simd>: Copy;

    /// Returns the sums of a group before the first product, for one half of the group or for all of it.
    fn start<S: Simd>(simd: S, from: Narrow, x: &GroupNumbers, half: usize) -> Self::Sums<S>;

    /// Returns the levels of the inputs `2 * pair` and `2 * pair + 1`.
    fn levels<S: Simd>(simd: S, from: Narrow, lines: (&[Line], usize), pair: usize) -> S::Integers;

    /// Returns the group `x` in the form that [`LevelSums::add`] takes, with `halves` for what is not in `x`.
    #[inline(always)]
    fn left<'a, S: Simd>(_simd: S, x: &'a Line, _halves: &'a mut [Line; 2]) -> &'a [Line] {
        std::slice::from_ref(x)
    }

    /// Adds the products of levels and the same pair of inputs of `left`.
    fn add<S: Simd>(simd: S, sums: Self::Sums<S>, levels: S::Integers, left: &[Line], pair: usize) -> Self::Sums<S>;

    /// Returns Σ level · x, without the scale of x, for each output.
    fn dots<S: Simd>(simd: S, sums: Self::Sums<S>) -> S::Vector;

    /// Returns the factors of [`LevelSums::dots`]: the scales of the weights times that of x.
    fn scale<S: Simd>(simd: S, scale: S::Vector, x: &GroupNumbers) -> S::Vector;
}

/// Exact sums of products of 16-bit integers.
pub(super) struct Integers;

/// Sums of f32, in the order of inputs, of products of 16-bit integers. Without vectors they are faster than
/// [`Integers`].
pub(super) struct Floats;

/// Sums of f32, pair by pair in the order of inputs.
pub(super) struct Bf16Pairs;

/// Sums of f32: the even products in order, and so the odd ones, then both, as in `level_dots`.
pub(super) struct Halves;

impl LevelSums for Integers {
    type Sums<S: Simd> = S::Integers;

    #[inline(always)]
    fn start<S: Simd>(simd: S, from: Narrow, x: &GroupNumbers, half: usize) -> S::Integers {
        simd.load_integers(&[-from.zero_level() * x.sums[half] as i32; LANES])
    }

    #[inline(always)]
    fn levels<S: Simd>(simd: S, from: Narrow, lines: (&[Line], usize), pair: usize) -> S::Integers {
        from.integers(simd, lines, pair)
    }

    #[inline(always)]
    fn add<S: Simd>(simd: S, sums: S::Integers, levels: S::Integers, left: &[Line], pair: usize) -> S::Integers {
        simd.pin(simd.add_integer_dots(sums, levels, left[0].0[pair]))
    }

    #[inline(always)]
    fn dots<S: Simd>(simd: S, sums: S::Integers) -> S::Vector {
        simd.to_floats(sums)
    }

    #[inline(always)]
    fn scale<S: Simd>(simd: S, scale: S::Vector, x: &GroupNumbers) -> S::Vector {
        simd.mul(scale, simd.splat(x.scale))
    }
}

impl LevelSums for Floats {
    type Sums<S: Simd> = S::Vector;

    #[inline(always)]
    fn start<S: Simd>(simd: S, from: Narrow, x: &GroupNumbers, half: usize) -> S::Vector {
        simd.splat(-from.zero_level() as f32 * x.sums[half])
    }

    #[inline(always)]
    fn levels<S: Simd>(simd: S, from: Narrow, lines: (&[Line], usize), pair: usize) -> S::Integers {
        from.integers(simd, lines, pair)
    }

    #[inline(always)]
    fn add<S: Simd>(simd: S, mut sums: S::Vector, levels: S::Integers, left: &[Line], pair: usize) -> S::Vector {
        let x = integers_of(left[0].0[pair].cast_signed());
        for (levels, x) in simd.widen_integers(levels).into_iter().zip(x) {
            sums = simd.mul_add(levels, simd.splat(x as f32), sums);
        }
        sums
    }

    #[inline(always)]
    fn dots<S: Simd>(_simd: S, sums: S::Vector) -> S::Vector {
        sums
    }

    #[inline(always)]
    fn scale<S: Simd>(simd: S, scale: S::Vector, x: &GroupNumbers) -> S::Vector {
        Integers::scale(simd, scale, x)
    }
}

impl LevelSums for Bf16Pairs {
    type Sums<S: Simd> = S::Vector;

    #[inline(always)]
    fn start<S: Simd>(simd: S, _from: Narrow, _x: &GroupNumbers, _half: usize) -> S::Vector {
        simd.splat(0.0)
    }

    #[inline(always)]
    fn levels<S: Simd>(simd: S, from: Narrow, lines: (&[Line], usize), pair: usize) -> S::Integers {
        from.pairs(simd, lines, pair)
    }

    #[inline(always)]
    fn add<S: Simd>(simd: S, sums: S::Vector, levels: S::Integers, left: &[Line], pair: usize) -> S::Vector {
        simd.add_bf16_dots(sums, levels, left[0].0[pair])
    }

    #[inline(always)]
    fn dots<S: Simd>(_simd: S, sums: S::Vector) -> S::Vector {
        sums
    }

    #[inline(always)]
    fn scale<S: Simd>(_simd: S, scale: S::Vector, _x: &GroupNumbers) -> S::Vector {
        scale
    }
}

impl LevelSums for Halves {
    type Sums<S: Simd> = [S::Vector; 2];

    #[inline(always)]
    fn start<S: Simd>(simd: S, _from: Narrow, _x: &GroupNumbers, _half: usize) -> [S::Vector; 2] {
        [simd.splat(0.0); 2]
    }

    #[inline(always)]
    fn levels<S: Simd>(simd: S, from: Narrow, lines: (&[Line], usize), pair: usize) -> S::Integers {
        from.pairs(simd, lines, pair)
    }

    /// Returns the even and the odd inputs as f32.
    #[inline(always)]
    fn left<'a, S: Simd>(simd: S, x: &'a Line, halves: &'a mut [Line; 2]) -> &'a [Line] {
        for (half, values) in halves.iter_mut().zip(simd.widen_bf16_pairs(simd.load_words(&x.0))) {
            let mut floats = [0.0; LANES];
            simd.store(values, &mut floats);
            *half = Line(floats.map(f32::to_bits));
        }
        // The compiler would keep copies of all values in vectors, and these on the stack.
        std::hint::black_box(halves)
    }

    #[inline(always)]
    fn add<S: Simd>(
        simd: S,
        mut sums: [S::Vector; 2],
        levels: S::Integers,
        left: &[Line],
        pair: usize,
    ) -> [S::Vector; 2] {
        let levels = simd.widen_bf16_pairs(levels);
        for ((sums, levels), left) in sums.iter_mut().zip(levels).zip(left) {
            *sums = simd.mul_add(simd.splat(f32::from_bits(left.0[pair])), levels, *sums);
        }
        sums
    }

    #[inline(always)]
    fn dots<S: Simd>(simd: S, [even, odd]: [S::Vector; 2]) -> S::Vector {
        simd.add(even, odd)
    }

    #[inline(always)]
    fn scale<S: Simd>(_simd: S, scale: S::Vector, _x: &GroupNumbers) -> S::Vector {
        scale
    }
}
