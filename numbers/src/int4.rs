//! Int4 values that stand for floats: a group of inputs shares a factor, and the weights of an output share a scale.
//!
//! Entry points: [`scale`] and [`round_group`]; [`round_row`] for both. A weight is about `scale · factor · (nibble -
//! 8)`. The scale, an f32, belongs to the output. The factor, an integer from -15 to 15, belongs to the group.
//! Therefore `factor · (nibble - 8)` is an int8, and integer sums are exact. (Progressive group quantisation, as in
//! QServe, arXiv 2405.04532, section 4.1.) The sign of a factor is usually such that `nibble - 8` is -8 for the weight
//! of the largest magnitude in the group.

use crate::LEAST_MAGNITUDE;

/// The number of inputs that share a factor.
pub const GROUP_INPUTS: usize = 32;
/// The largest magnitude of a factor.
const MAX_FACTOR: f32 = 15.0;
/// The number of error sums that are computed side by side.
const LANES: usize = 16;

/// Quantizes the weights of an output, and returns their scale. Each weight is about its integer, from -8 to 7, times
/// the factor of its group, from -15 to 15, times the scale. If the last group is not full, its missing weights count
/// as 0.
///
/// # Panics
/// When the number of groups in `integers`, or of factors, differs from the number of groups in the row.
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

/// Returns the scale of an output with the weights `row`. The scale is infinite or NaN if a weight is, and 0 if all
/// magnitudes are below [`LEAST_MAGNITUDE`].
#[inline(always)]
pub fn scale(row: &[f32]) -> f32 {
    let largest = extreme(row).abs();
    if largest < LEAST_MAGNITUDE { 0.0 } else { largest / (8.0 * MAX_FACTOR) }
}

/// Returns the factor and the nibbles of a group. If `weights` are fewer than a group has, the missing ones count as 0.
#[inline(always)]
pub fn round_group(weights: &[f32], scale: f32) -> (f32, [f32; GROUP_INPUTS]) {
    let mut group = [0.0; GROUP_INPUTS];
    group[..weights.len()].copy_from_slice(weights);
    let factor = if scale > 0.0 { best_factor(&group, scale) } else { 0.0 };
    (factor, nibbles(&group, factor * scale))
}

/// Returns the weight of the largest magnitude, and among equal magnitudes the negative one. NaN counts as larger than
/// all numbers.
#[inline(always)]
fn extreme(weights: &[f32]) -> f32 {
    let mut furthest = 0;
    for weight in weights {
        // The sign becomes the lowest bit, so it decides only between equal magnitudes.
        furthest = furthest.max(weight.to_bits().rotate_left(1));
    }
    f32::from_bits(furthest.rotate_right(1))
}

/// Returns the factor of a group with the smallest sum of squared errors. The candidates are the factor that brings the
/// weight of the largest magnitude nearest to -8, its two neighbours and its negative. Returns 0 if none of them is
/// allowed and has a finite error.
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
    // The second half is added to the first until one sum is left. In a chain over all sums each addition would wait
    // for the one before.
    let mut len = LANES;
    while len > 1 {
        len /= 2;
        for lane in 0..len {
            sums[lane] += sums[lane + len];
        }
    }
    sums[0]
}

/// Returns the nibble, from 0 to 15, for which `(nibble - 8) · step` is nearest to each weight.
#[inline(always)]
fn nibbles(weights: &[f32; GROUP_INPUTS], step: f32) -> [f32; GROUP_INPUTS] {
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    let mut nibbles = [0.0; GROUP_INPUTS];
    for (nibble, weight) in nibbles.iter_mut().zip(weights) {
        // Adding 1.5 * 2^23 and subtracting it again rounds to an integer.
        let rounded = weight * inverse + (12_582_912.0 + 8.0) - 12_582_912.0;
        *nibble = rounded.clamp(0.0, 15.0);
    }
    nibbles
}
