//! The types of numbers that a cache can hold, and what each becomes in registers.
//!
//! Door: [`KvElement`]. Numbers are rounded to the nearest once, when they are written; whoever reads them, in the same step
//! or in a later one, reads the rounded numbers. Widening is exact.

use half::{bf16, f16};

use crate::integers::{int8, int8_scale};
use crate::isa::{LANES, Simd};
use crate::lines::Numbers;

/// A type of numbers in a cache.
pub(super) trait KvElement: Send + Sync {
    /// What lies in memory; the default is the number zero, and all its bits are.
    type Stored: std::fmt::Debug + Default + Numbers + Send + Sync;

    /// Whether each vector has a factor of its own.
    const HAS_SCALES: bool;

    /// Rounds the numbers of a vector, and answers its factor: 1 where it has none.
    fn round(numbers: &[f32], to: &mut [Self::Stored]) -> f32;

    /// Sixteen numbers, without their vector's factor.
    fn widen<S: Simd>(simd: S, stored: &[Self::Stored; LANES]) -> S::Vector;
}

impl KvElement for f32 {
    type Stored = Self;

    const HAS_SCALES: bool = false;

    fn round(numbers: &[f32], to: &mut [f32]) -> f32 {
        to.copy_from_slice(numbers);
        1.0
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, stored: &[f32; LANES]) -> S::Vector {
        simd.load(stored)
    }
}

impl KvElement for f16 {
    type Stored = u16;

    const HAS_SCALES: bool = false;

    /// Numbers out of range become the largest there are: activations of 32 bits may be larger than those of the model's type.
    fn round(numbers: &[f32], to: &mut [u16]) -> f32 {
        let largest = Self::MAX.to_f32();
        for (number, to) in numbers.iter().zip(to) {
            let in_range = if number.is_finite() { number.clamp(-largest, largest) } else { *number };
            *to = Self::from_f32(in_range).to_bits();
        }
        1.0
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, stored: &[u16; LANES]) -> S::Vector {
        simd.widen_f16(stored)
    }
}

impl KvElement for bf16 {
    type Stored = u16;

    const HAS_SCALES: bool = false;

    fn round(numbers: &[f32], to: &mut [u16]) -> f32 {
        numbers.iter().zip(to).for_each(|(number, to)| *to = Self::from_f32(*number).to_bits());
        1.0
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, stored: &[u16; LANES]) -> S::Vector {
        simd.widen_bf16(stored)
    }
}

impl KvElement for i8 {
    type Stored = Self;

    const HAS_SCALES: bool = true;

    /// The factor is infinite or not a number where one of the numbers is.
    fn round(numbers: &[f32], to: &mut [i8]) -> f32 {
        let (scale, inverse) = int8_scale(numbers);
        numbers.iter().zip(to).for_each(|(number, to)| *to = int8(*number, inverse).cast_signed());
        scale
    }

    #[inline(always)]
    fn widen<S: Simd>(simd: S, stored: &[i8; LANES]) -> S::Vector {
        simd.widen_i8(stored)
    }
}
