//! Four bits a weight: groups of 32 inputs that share a factor, and outputs that share a scale.
//!
//! Doors: [`pack`], [`copy_row`], [`unpack_step`], [`group_offsets`], and [`int4_row`] for devices with other layouts. A weight is `scale · factor · (nibble - 8)`: the scale, an f32, belongs to its output,
//! the factor, an integer from -15 to 15, to its group, so that `factor · (nibble - 8)` is an integer of 8 bits and sums stay
//! exact. (Progressive group quantisation, as in QServe, arXiv 2405.04532, section 4.1.) A factor's sign is such that the largest weight of its group is -8.
//!
//! A step of 64 inputs and 32 outputs is a line of factors `[2 groups][2 tiles][16 outputs]`, then lines of nibbles `[2 groups][2 tiles][4][16 outputs]`:
//! in a word's bytes, the low halves hold inputs 4i to 4i + 3 of the group for line i, the high halves those 16 further.

use crate::isa::{self, GROUP_LINES, Int4Group, Kernel, LANES, Simd};
use crate::lines::{Line, STEP_LINES, TILE_SIZE};

/// Inputs that share a factor in weights of [`WeightType::Int4`](super::WeightType::Int4).
pub const INT4_GROUP_INPUTS: usize = 32;
/// The same.
const GROUP_INPUTS: usize = INT4_GROUP_INPUTS;
/// Words of a row of x for a group.
const GROUP_WORDS: usize = GROUP_INPUTS / 4;
/// Groups of a step.
pub(super) const STEP_GROUPS: usize = 2;
/// Tiles of a panel.
pub(super) const PANEL_TILES: usize = 2;
/// Lines of a step.
pub(super) const INT4_STEP_LINES: usize = 1 + STEP_GROUPS * PANEL_TILES * GROUP_LINES;

/// The largest size of a factor.
const MAX_FACTOR: f32 = 15.0;

/// The weights of one of a step's groups for one of its tiles.
#[inline(always)]
pub(super) fn group(step: &[Line], group: usize, tile: usize) -> Int4Group<'_> {
    let idx = group * PANEL_TILES + tile;
    let factors = step[0].0.as_chunks::<{ TILE_SIZE / 4 }>().0;
    let lines = step[1 + idx * GROUP_LINES..].first_chunk().expect("a step has lines for each of its groups");
    Int4Group { lines, factors: &factors[idx] }
}

/// What nibbles count from, -8, times the sum of the first and second bytes of `quads`, and times that of the others.
#[inline(always)]
pub(super) fn group_offsets(quads: &[u32; GROUP_WORDS]) -> [i16; 2] {
    let mut sums = [0_i16; 2];
    for quad in quads {
        let [a, b, c, d] = quad.to_le_bytes().map(|byte| i16::from(byte.cast_signed()));
        sums = [sums[0] + a + b, sums[1] + c + d];
    }
    sums.map(|sum| -8 * sum)
}

/// Packs the weights of one output of a panel into its `steps`, and returns their scale. It is infinite or not a number where one of the weights is.
#[inline(always)]
pub(super) fn pack(steps: &mut [Line], output: usize, row: &[f32]) -> f32 {
    let scale = scale(row);
    for (idx, weights) in row.chunks(GROUP_INPUTS).enumerate() {
        let step = &mut steps[idx / STEP_GROUPS * INT4_STEP_LINES..][..INT4_STEP_LINES];
        let (factor, nibbles) = round(weights, scale);
        set_group(step, idx % STEP_GROUPS, output, factor, &nibbles);
    }
    scale
}

/// Rounds the weights of an output as [`WeightType::Int4`](super::WeightType::Int4) does, and returns their scale: each is about its integer, from -8
/// to 7, times the factor of its group, from -15 to 15, times the scale. Missing weights of the last group are 0.
///
/// # Panics
/// When there are not as many groups of `integers`, or of `factors`, as of the row.
pub fn int4_row(row: &[f32], integers: &mut [[i8; INT4_GROUP_INPUTS]], factors: &mut [i8]) -> f32 {
    let num_groups = row.len().div_ceil(GROUP_INPUTS);
    assert_eq!([integers.len(), factors.len()], [num_groups; 2], "a row of {} weights", row.len());
    isa::active().run_floats(RoundRow { row, integers, factors })
}

struct RoundRow<'a> {
    row: &'a [f32],
    integers: &'a mut [[i8; GROUP_INPUTS]],
    factors: &'a mut [i8],
}

impl Kernel for RoundRow<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) -> f32 {
        let scale = scale(self.row);
        let groups = self.row.chunks(GROUP_INPUTS).zip(self.integers).zip(self.factors);
        for ((weights, integers), to) in groups {
            let (factor, nibbles) = round(weights, scale);
            *to = factor as i8;
            for (integer, nibble) in integers.iter_mut().zip(nibbles) {
                *integer = (nibble - 8.0) as i8;
            }
        }
        scale
    }
}

/// What the integers of an output, times their factors, are multiplied with.
#[inline(always)]
fn scale(row: &[f32]) -> f32 {
    let largest = extreme(row).abs();
    // The inverse of less would not be finite.
    if largest < 1e-30 { 0.0 } else { largest / (8.0 * MAX_FACTOR) }
}

/// The factor and the nibbles of a group, or of its beginning.
#[inline(always)]
fn round(weights: &[f32], scale: f32) -> (f32, [f32; GROUP_INPUTS]) {
    let mut group = [0.0; GROUP_INPUTS];
    group[..weights.len()].copy_from_slice(weights);
    let factor = if scale > 0.0 { best_factor(&group, scale) } else { 0.0 };
    (factor, nibbles(&group, factor * scale))
}

/// The weight that is furthest from zero, of two the negative one; one that is not a number is further than all numbers.
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

#[inline(always)]
fn set_group(step: &mut [Line], group: usize, output: usize, factor: f32, nibbles: &[f32; GROUP_INPUTS]) {
    let (tile, column) = (output / TILE_SIZE, output % TILE_SIZE);
    let idx = group * PANEL_TILES + tile;
    let factor_idx = idx * TILE_SIZE + column;
    step[0].0[factor_idx / 4] |= u32::from((factor as i8).cast_unsigned()) << (factor_idx % 4 * 8);
    let (low, high) = nibbles.split_at(GROUP_INPUTS / 2);
    let quads = low.as_chunks::<4>().0.iter().zip(high.as_chunks::<4>().0);
    for (line, (low, high)) in step[1 + idx * GROUP_LINES..].iter_mut().zip(quads) {
        let mut bytes = [0; 4];
        for (byte, (low, high)) in bytes.iter_mut().zip(low.iter().zip(high)) {
            *byte = *low as u8 | (*high as u8) << 4;
        }
        line.0[column] = u32::from_le_bytes(bytes);
    }
}

/// Writes the integers of one output, `factor · (nibble - 8)`, to `row`: those of `steps`, as many as it holds.
pub(super) fn copy_row(steps: &[Line], output: usize, row: &mut [f32]) {
    let (tile, column) = (output / TILE_SIZE, output % TILE_SIZE);
    let groups =
        steps.chunks_exact(INT4_STEP_LINES).flat_map(|step| (0..STEP_GROUPS).map(move |idx| group(step, idx, tile)));
    for (group, row) in groups.zip(row.chunks_mut(GROUP_INPUTS)) {
        let values = (0..GROUP_WORDS).flat_map(|quad| group.scaled_bytes(quad, column));
        row.iter_mut().zip(values).for_each(|(to, value)| *to = f32::from(value));
    }
}

/// Writes a step as one of int8: `[2 tiles][16 words][16 outputs]`.
#[inline(always)]
pub(super) fn unpack_step(step: &[Line], to: &mut [Line]) {
    for (tile, to) in to[..STEP_LINES].chunks_exact_mut(TILE_SIZE).enumerate() {
        for (idx, to) in to.chunks_exact_mut(GROUP_WORDS).enumerate() {
            let group = group(step, idx, tile);
            let mut factors = [0; TILE_SIZE];
            for (column, factor) in factors.iter_mut().enumerate() {
                *factor = u32::from(group.factor(column).cast_unsigned());
            }
            let (low, high) = to.split_at_mut(GROUP_LINES);
            for (line, (low, high)) in low.iter_mut().zip(high).enumerate() {
                let [low_nibbles, high_nibbles] = group.centred(line);
                for column in 0..TILE_SIZE {
                    low.0[column] = times(low_nibbles[column], factors[column]);
                    high.0[column] = times(high_nibbles[column], factors[column]);
                }
            }
        }
    }
}

/// Each of four bytes times another, of which the lower byte is kept: two at a time, each with space for its product.
#[inline(always)]
fn times(bytes: u32, factor: u32) -> u32 {
    const EVEN: u32 = 0x00ff_00ff;
    let (even, odd) = ((bytes & EVEN) * factor, ((bytes >> 8) & EVEN) * factor);
    (even & EVEN) | (odd & EVEN) << 8
}
