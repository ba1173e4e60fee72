//! The types of numbers in a cache, and their conversion when registers load them.
//!
//! Entry points: [`KvElement`], [`Bf16Exact`]. Numbers are rounded once, when they are written. Every reader, in the
//! same step or a later one, sees the rounded numbers. Widening is exact.

use half::{bf16, f16};
use numbers::int8;

use crate::isa::Simd;
use crate::lines::Numbers;

/// The numbers of a word for sixteen columns: sixteen pairs of neighbours and an empty slice if
/// [`KvElement::NEIGHBOURS`] is 2, otherwise sixteen numbers and their sixteen partners.
pub(super) type WordNumbers<'a, E> = [&'a [<E as KvElement>::Stored]; 2];

/// A type of numbers in a cache.
pub(super) trait KvElement: Send + Sync {
    /// The type in memory. Its default is the number zero, all of whose bits are zero.
    type Stored: std::fmt::Debug + Default + Numbers + Send + Sync;

    /// True if each vector has a scale factor of its own.
    const HAS_SCALES: bool;
    /// 2 if the two numbers that a product sums in one lane are adjacent in memory, otherwise 1.
    const NEIGHBOURS: usize = 1;

    /// Rounds the numbers of a vector and returns its scale factor, 1 for types without factors.
    fn round<'a>(numbers: &[f32], to: impl Iterator<Item = &'a mut Self::Stored>) -> f32
    where
        Self::Stored: 'a;

    /// Widens sixteen pairs of numbers to f32. The scale factors of their vectors are not applied.
    fn widen<S: Simd>(simd: S, numbers: WordNumbers<'_, Self>) -> [S::Vector; 2];

    /// True if the number is finite. Integers always are, although their scale factors may not be.
    fn is_finite(stored: Self::Stored) -> bool;
}

/// A type of numbers that are exact in bf16.
pub(super) trait Bf16Exact: KvElement {
    /// True if the stored numbers are not bf16 and have to be converted.
    const IS_CONVERTED: bool;

    /// Converts the sixteen pairs of `numbers` to bf16. Each lane of the result has one pair, its first number in the
    /// low half.
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

    /// Clamps finite numbers to the range of f16, because f32 activations may exceed it.
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

    /// If one of the numbers is infinite or NaN, the returned factor is too.
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

/// Returns the first `LEN` numbers as an array.
#[inline(always)]
fn lanes<T, const LEN: usize>(numbers: &[T]) -> &[T; LEN] {
    numbers.first_chunk().expect("a word has `LEN` numbers")
}
