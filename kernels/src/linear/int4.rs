//! The layout of int4 weights in cache lines. `numbers::int4` defines the format.
//!
//! Entry points: [`pack`], [`group`], [`copy_row`], [`unpack_step`], [`group_offsets`].
//!
//! A step of 64 inputs and 32 outputs is a line of factors `[2 groups][2 tiles][16 outputs]`, then lines of nibbles `[2
//! groups][2 tiles][4][16 outputs]`. In the bytes of a word of line i, the low nibbles hold inputs 4i to 4i + 3 of the
//! group, and the high nibbles hold inputs 4i + 16 to 4i + 19.

use numbers::int4::{self, GROUP_INPUTS};

use crate::isa::{GROUP_LINES, Int4Group};
use crate::lines::{Line, STEP_LINES, TILE_SIZE};

/// The number of words of a row of x that belong to a group.
const GROUP_WORDS: usize = GROUP_INPUTS / 4;
/// The number of groups of a step.
pub(super) const STEP_GROUPS: usize = 2;
/// The number of tiles of a panel.
pub(super) const PANEL_TILES: usize = 2;
/// The number of lines of a step.
pub(super) const INT4_STEP_LINES: usize = 1 + STEP_GROUPS * PANEL_TILES * GROUP_LINES;

/// Returns the weights of one group of a step for one tile.
#[inline(always)]
pub(super) fn group(step: &[Line], group: usize, tile: usize) -> Int4Group<'_> {
    let idx = group * PANEL_TILES + tile;
    let factors = step[0].0.as_chunks::<{ TILE_SIZE / 4 }>().0;
    let lines = step[1 + idx * GROUP_LINES..].first_chunk().expect("a step has lines for each of its groups");
    Int4Group { lines, factors: &factors[idx] }
}

/// Returns two sums times -8, the offset of nibbles: the sum of the first and second bytes of all `quads`, and the sum
/// of the third and fourth bytes.
#[inline(always)]
pub(super) fn group_offsets(quads: &[u32; GROUP_WORDS]) -> [i16; 2] {
    let mut sums = [0_i16; 2];
    for quad in quads {
        let [a, b, c, d] = quad.to_le_bytes().map(|byte| i16::from(byte.cast_signed()));
        sums = [sums[0] + a + b, sums[1] + c + d];
    }
    sums.map(|sum| -8 * sum)
}

/// Quantizes the weights of one output, packs them into the `steps` of its panel, and returns their scale. The scale is
/// infinite or NaN if a weight is.
#[inline(always)]
pub(super) fn pack(steps: &mut [Line], output: usize, row: &[f32]) -> f32 {
    let scale = int4::scale(row);
    for (idx, weights) in row.chunks(GROUP_INPUTS).enumerate() {
        let step = &mut steps[idx / STEP_GROUPS * INT4_STEP_LINES..][..INT4_STEP_LINES];
        let (factor, nibbles) = int4::round_group(weights, scale);
        set_group(step, idx % STEP_GROUPS, output, factor, &nibbles);
    }
    scale
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

/// Writes the integers of one output, `factor · (nibble - 8)`, from `steps` to `row`, as many as `row` holds.
pub(super) fn copy_row(steps: &[Line], output: usize, row: &mut [f32]) {
    let (tile, column) = (output / TILE_SIZE, output % TILE_SIZE);
    let groups =
        steps.chunks_exact(INT4_STEP_LINES).flat_map(|step| (0..STEP_GROUPS).map(move |idx| group(step, idx, tile)));
    for (group, row) in groups.zip(row.chunks_mut(GROUP_INPUTS)) {
        let values = (0..GROUP_WORDS).flat_map(|quad| group.scaled_bytes(quad, column));
        row.iter_mut().zip(values).for_each(|(to, value)| *to = f32::from(value));
    }
}

/// Unpacks a step to the int8 layout: `[2 tiles][16 words][16 outputs]`.
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

/// Multiplies each of four bytes by `factor` and keeps the low byte of each product. Two bytes are multiplied at a
/// time, each with space for its product.
#[inline(always)]
fn times(bytes: u32, factor: u32) -> u32 {
    const EVEN: u32 = 0x00ff_00ff;
    let (even, odd) = ((bytes & EVEN) * factor, ((bytes >> 8) & EVEN) * factor);
    (even & EVEN) | (odd & EVEN) << 8
}
