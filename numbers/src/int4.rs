//! Integers of four bits that stand for floats: groups of inputs share a factor, and outputs a scale.
//!
//! Doors: [`scale`] and [`round_group`]; [`round_row`] for both. A weight is `scale · factor · (nibble - 8)`: the
//! scale, an f32, belongs to its output, the factor, an integer from -15 to 15, to its group, so that
//! `factor · (nibble - 8)` is an integer of 8 bits and sums stay exact. (Progressive group quantisation, as in QServe,
//! arXiv 2405.04532, section 4.1.) A factor's sign is such that the largest weight of its group is -8.

use crate::LEAST_MAGNITUDE;

/// Inputs that share a factor.
pub const GROUP_INPUTS: usize = 32;
/// The largest size of a factor.
const MAX_FACTOR: f32 = 15.0;
/// Sums of errors that are added up side by side.
const LANES: usize = 16;

/// Rounds the weights of an output, and returns their scale: each is about its integer, from -8 to 7, times the factor
/// of its group, from -15 to 15, times the scale. Missing weights of the last group are 0.
///
/// # Panics
/// When there are not as many groups of `integers`, or of `factors`, as of the row.
pub fn round_row(row: &[f32], integers: &mut [[i8; GROUP_INPUTS]], factors: &mut [i8]) -> f32 {
    let num_groups = row.len().div_ceil(GROUP_INPUTS);
    assert_eq!(
        [integers.len(), factors.len()],
        [num_groups; 2],
        "groups of integers, and factors, of a row of {} weights",
        row.len()
    );
    let scale = scale(row);
    for ((weights, integers), to) in row.chunks(GROUP_INPUTS).zip(integers).zip(factors) {
        let (factor, nibbles) = round_group(weights, scale);
        *to = factor as i8;
        for (integer, nibble) in integers.iter_mut().zip(nibbles) {
            *integer = (nibble - 8.0) as i8;
        }
    }
    scale
}

/// The scale of an output with the weights `row`. It is infinite or not a number where one of them is.
#[inline(always)]
pub fn scale(row: &[f32]) -> f32 {
    let largest = extreme(row).abs();
    if largest < LEAST_MAGNITUDE { 0.0 } else { largest / (8.0 * MAX_FACTOR) }
}

/// The factor and the nibbles of a group, or of its beginning.
#[inline(always)]
pub fn round_group(weights: &[f32], scale: f32) -> (f32, [f32; GROUP_INPUTS]) {
    let mut group = [0.0; GROUP_INPUTS];
    group[..weights.len()].copy_from_slice(weights);
    let factor = if scale > 0.0 { best_factor(&group, scale) } else { 0.0 };
    (factor, nibbles(&group, factor * scale))
}

/// The weight that is furthest from zero, of two the negative one; one that is not a number is further than all
/// numbers.
#[inline(always)]
fn extreme(weights: &[f32]) -> f32 {
    let mut furthest = 0;
    for weight in weights {
        // The sign counts least.
        furthest = furthest.max(weight.to_bits().rotate_left(1));
    }
    f32::from_bits(furthest.rotate_right(1))
}

/// The factor with the smallest sum of squared errors, near the one that makes the largest weight -8.
#[inline(always)]
fn best_factor(weights: &[f32; GROUP_INPUTS], scale: f32) -> f32 {
    let extreme = extreme(weights);
    let nearest = (extreme / (-8.0 * scale)).round_ties_even();
    let sign = if extreme > 0.0 { -1.0 } else { 1.0 };
    let (mut best, mut least_error) = (0.0, f32::INFINITY);
    for factor in [nearest, nearest - sign, nearest + sign, -nearest] {
        let is_allowed = factor != 0.0 && factor.abs() <= MAX_FACTOR;
        let error = squared_error(weights, factor * scale);
        if is_allowed && error < least_error {
            (best, least_error) = (factor, error);
        }
    }
    best
}

#[inline(always)]
fn squared_error(weights: &[f32; GROUP_INPUTS], step: f32) -> f32 {
    let mut sums = [0.0; LANES];
    let nibbles = nibbles(weights, step);
    for (weights, nibbles) in weights.as_chunks::<LANES>().0.iter().zip(nibbles.as_chunks::<LANES>().0) {
        for (sum, (weight, nibble)) in sums.iter_mut().zip(weights.iter().zip(nibbles)) {
            let error = weight - (nibble - 8.0) * step;
            *sum += error * error;
        }
    }
    // Halves are added to one another: a chain of all would be waited for.
    let mut len = LANES;
    while len > 1 {
        len /= 2;
        for lane in 0..len {
            sums[lane] += sums[lane + len];
        }
    }
    sums[0]
}

/// The nearest whole numbers from 0 to 15 that stand for `weights`.
#[inline(always)]
fn nibbles(weights: &[f32; GROUP_INPUTS], step: f32) -> [f32; GROUP_INPUTS] {
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    let mut nibbles = [0.0; GROUP_INPUTS];
    for (nibble, weight) in nibbles.iter_mut().zip(weights) {
        // Adding 1.5 * 2^23 rounds to a whole number.
        let rounded = weight * inverse + (12_582_912.0 + 8.0) - 12_582_912.0;
        *nibble = rounded.clamp(0.0, 15.0);
    }
    nibbles
}
