//! The types of numbers that a cache can hold, and what each becomes in registers.
//!
//! Doors: [`KvElement`], [`Bf16Exact`]. Numbers are rounded to the nearest once, when they are written; whoever reads them, in the same
//! step or in a later one, reads the rounded numbers. Widening is exact.

use half::{bf16, f16};
use numbers::int8;

use crate::isa::Simd;
use crate::lines::Numbers;

/// The numbers of a word for sixteen columns: pairs of neighbours, then none, or sixteen and their partners.
pub(super) type WordNumbers<'a, E> = [&'a [<E as KvElement>::Stored]; 2];

/// A type of numbers in a cache.
pub(super) trait KvElement: Send + Sync {
    /// What lies in memory; the default is the number zero, and all its bits are.
    type Stored: std::fmt::Debug + Default + Numbers + Send + Sync;

    /// Whether each vector has a factor of its own.
    const HAS_SCALES: bool;
    /// Numbers that a product sums in one lane and that lie side by side, one or two.
    const NEIGHBOURS: usize = 1;

    /// Rounds the numbers of a vector, and answers its factor: 1 where it has none.
    fn round<'a>(numbers: &[f32], to: impl Iterator<Item = &'a mut Self::Stored>) -> f32
    where
        Self::Stored: 'a;

    /// Sixteen pairs of numbers, without their vectors' factors.
    fn widen<S: Simd>(simd: S, numbers: WordNumbers<'_, Self>) -> [S::Vector; 2];

    /// Whether it is a number. Integers are, their factors may not be.
    fn is_finite(stored: Self::Stored) -> bool;
}

/// A type of numbers that are exact in bf16.
pub(super) trait Bf16Exact: KvElement {
    /// Whether they have to be converted.
    const IS_CONVERTED: bool;

    /// Sixteen pairs, as [`KvElement::widen`] has them, in bf16.
    fn words<S: Simd>(simd: S, numbers: WordNumbers<'_, Self>) -> S::Integers;
}

impl KvElement for f32 {
    type Stored = Self;

    const HAS_SCALES: bool = false;

    fn round<'a>(numbers: &[f32], to: impl Iterator<Item = &'a mut f32>) -> f32 {
        numbers.iter().zip(to).for_each(|(number, to)| *to = *number);
        1.0
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, [first, second]: WordNumbers<'_, Self>) -> [S::Vector; 2] {
        [simd.load(lanes(first)), simd.load(lanes(second))]
    }

    fn is_finite(stored: f32) -> bool {
        stored.is_finite()
    }
}

impl KvElement for f16 {
    type Stored = u16;

    const HAS_SCALES: bool = false;

    /// Numbers out of range become the largest there are: activations of 32 bits may be larger than those of the model's type.
    fn round<'a>(numbers: &[f32], to: impl Iterator<Item = &'a mut u16>) -> f32 {
        let largest = Self::MAX.to_f32();
        for (number, to) in numbers.iter().zip(to) {
            let in_range = if number.is_finite() { number.clamp(-largest, largest) } else { *number };
            *to = Self::from_f32(in_range).to_bits();
        }
        1.0
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, [first, second]: WordNumbers<'_, Self>) -> [S::Vector; 2] {
        [simd.widen_f16(lanes(first)), simd.widen_f16(lanes(second))]
    }

    fn is_finite(stored: u16) -> bool {
        stored & Self::INFINITY.to_bits() != Self::INFINITY.to_bits()
    }
}

impl KvElement for bf16 {
    type Stored = u16;

    const HAS_SCALES: bool = false;
    const NEIGHBOURS: usize = 2;

    fn round<'a>(numbers: &[f32], to: impl Iterator<Item = &'a mut u16>) -> f32 {
        numbers.iter().zip(to).for_each(|(number, to)| *to = Self::from_f32(*number).to_bits());
        1.0
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, [pairs, _]: WordNumbers<'_, Self>) -> [S::Vector; 2] {
        simd.widen_bf16_pairs(simd.load_pairs(lanes(pairs)))
    }

    fn is_finite(stored: u16) -> bool {
        stored & Self::INFINITY.to_bits() != Self::INFINITY.to_bits()
    }
}

impl Bf16Exact for bf16 {
    const IS_CONVERTED: bool = false;

    #[inline(always)]
    fn words<S: Simd>(simd: S, [pairs, _]: WordNumbers<'_, Self>) -> S::Integers {
        simd.load_pairs(lanes(pairs))
    }
}

impl KvElement for i8 {
    type Stored = Self;

    const HAS_SCALES: bool = true;

    /// The factor is infinite or not a number where one of the numbers is.
    fn round<'a>(numbers: &[f32], to: impl Iterator<Item = &'a mut i8>) -> f32 {
        let (scale, inverse) = int8::scale(numbers);
        numbers.iter().zip(to).for_each(|(number, to)| *to = int8::round(*number, inverse).cast_signed());
        scale
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, [first, second]: WordNumbers<'_, Self>) -> [S::Vector; 2] {
        [simd.widen_i8(lanes(first)), simd.widen_i8(lanes(second))]
    }

    fn is_finite(_stored: i8) -> bool {
        true
    }
}

impl Bf16Exact for i8 {
    const IS_CONVERTED: bool = true;

    #[inline(always)]
    fn words<S: Simd>(simd: S, [first, second]: WordNumbers<'_, Self>) -> S::Integers {
        simd.pair_bytes(lanes(first), lanes(second))
    }
}

/// As many of the first numbers as a vector has.
#[inline(always)]
fn lanes<T, const LEN: usize>(numbers: &[T]) -> &[T; LEN] {
    numbers.first_chunk().expect("a word has so many numbers")
}
