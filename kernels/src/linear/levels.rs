//! The layout in cache lines of weights in blocks (`numbers::blocks`), and their conversion to the nearest bf16.
//!
//! Entry points: [`num_head_lines`], [`step_lines`], [`pack`] and [`copy_row`]. Products use [`scales`], [`pairs`] and
//! [`integers`].
//!
//! A step is a group of 32 inputs, for 32 outputs. It has a line with a number of 16 bits for each output, then the
//! lines of levels. The number is the head of the block or, if blocks have several groups, the factors of the group;
//! the heads are then in the first lines of the panel. A type with minimums has a second line for the second
//! numbers of heads after each line of first numbers. Word i of a line has the number of output i in its low half, and
//! that of output i + 16 in its high half.
//!
//! The lines of levels are `[2 tiles][lines][16 outputs]`; a word has adjacent inputs of one output, at the positions
//! of `narrow::position`. Levels of 4 bits have 4 lines for each tile, and those of 8 bits have 8. Levels of 5 and 6
//! bits have their lower 4 bits in such lines, and their upper bits in further lines, `[2 tiles][1 or 2 lines][16
//! outputs]`.

use half::{bf16, f16};
use numbers::blocks::{BlockType, GROUP, Group, HALF_GROUP, TABLE_LEVELS, ZERO_FACTOR};

use super::narrow::{Scales, TABLE_LEN, position};
use super::packed_weight::PANEL_OUTPUTS;
use crate::isa::{HalfBits, LANES, Simd};
use crate::lines::{Line, TILE_SIZE};

/// The number of tiles of a panel.
const PANEL_TILES: usize = PANEL_OUTPUTS / TILE_SIZE;
/// The number of lines of levels of 4 bits, for a tile.
const NIBBLE_LINES: usize = GROUP / LINE_NIBBLES;
/// The number of inputs that a line of levels of 4 bits has.
const LINE_NIBBLES: usize = 8;

/// The levels of each type as bf16, less the level that stands for 0. A table repeats them up to its length.
static TABLES: [[u16; TABLE_LEN]; BlockType::ALL.len()] = {
    let mut tables = [[0; TABLE_LEN]; BlockType::ALL.len()];
    let mut kind = 0;
    while kind < tables.len() {
        let mut i = 0;
        while i < TABLE_LEN {
            let stored = (i % (1 << BlockType::ALL[kind].level_bits())) as u8;
            let level = BlockType::ALL[kind].level(stored) - BlockType::ALL[kind].zero_level();
            tables[kind][i] = (level.to_bits() >> 16) as u16;
            i += 1;
        }
        kind += 1;
    }
    tables
};

/// The levels of types with a table.
static INTEGERS: [[i8; TABLE_LEVELS]; BlockType::ALL.len()] = {
    let mut tables = [[0; TABLE_LEVELS]; BlockType::ALL.len()];
    let mut kind = 0;
    while kind < tables.len() {
        if let Some(levels) = BlockType::ALL[kind].table() {
            let mut i = 0;
            while i < TABLE_LEVELS {
                tables[kind][i] = levels[i] as i8;
                i += 1;
            }
        }
        kind += 1;
    }
    tables
};

/// Returns the number of lines of heads before the first step of a panel.
pub(super) fn num_head_lines(kind: BlockType, num_inputs: usize) -> usize {
    if kind.has_factors() { num_inputs.div_ceil(kind.block_len()) * head_lines(kind) } else { 0 }
}

/// Returns the number of lines of a step.
pub(super) fn step_lines(kind: BlockType) -> usize {
    num_number_lines(kind) + PANEL_TILES * kind.level_bits()
}

/// Returns the number of lines of a head.
const fn head_lines(kind: BlockType) -> usize {
    1 + kind.has_least() as usize
}

/// Returns the number of lines of a step before its levels.
const fn num_number_lines(kind: BlockType) -> usize {
    if kind.has_factors() { 1 } else { head_lines(kind) }
}

/// Packs the blocks of one output into the heads and the steps of its panel.
pub(super) fn pack(kind: BlockType, (heads, steps): (&mut [Line], &mut [Line]), output: usize, row: &[u8]) {
    let step_lines = step_lines(kind);
    let block_steps = kind.block_len() / GROUP;
    let blocks = row.chunks_exact(kind.block_bytes()).zip(steps.chunks_exact_mut(block_steps * step_lines));
    for (block_idx, (block, steps)) in blocks.enumerate() {
        let head = kind.head(block);
        if kind.has_factors() {
            set_numbers(&mut heads[block_idx * head_lines(kind)..][..head_lines(kind)], output, head);
        }
        for (idx, step) in steps.chunks_exact_mut(step_lines).enumerate() {
            let group = kind.group(block, idx);
            let (numbers, levels) = step.split_at_mut(num_number_lines(kind));
            set_numbers(numbers, output, if kind.has_factors() { [group.factors, 0] } else { head });
            set_levels(kind, levels, output, &group);
        }
    }
}

/// Sets the numbers of an output in as many lines as there are.
fn set_numbers(lines: &mut [Line], output: usize, numbers: [u16; 2]) {
    for (line, number) in lines.iter_mut().zip(numbers) {
        line.0[output % LANES] |= u32::from(number) << (16 * (output / LANES));
    }
}

fn set_levels(kind: BlockType, lines: &mut [Line], output: usize, group: &Group) {
    let (tile, column) = (output / TILE_SIZE, output % TILE_SIZE);
    let bits = kind.level_bits();
    let low_bits = low_bits(bits);
    let (low, high) = lines.split_at_mut(PANEL_TILES * low_bits);
    set_words(low, (tile, column), low_bits, &group.levels);
    if bits > low_bits {
        set_words(high, (tile, column), bits - low_bits, &group.levels.map(|level| level >> low_bits));
    }
}

/// Sets the words of an output in lines that have `num_bits` of each level. Further bits of `levels` are ignored.
fn set_words(lines: &mut [Line], (tile, column): (usize, usize), num_bits: usize, levels: &[u8; GROUP]) {
    let num_levels = u32::BITS as usize / num_bits;
    for (line, levels) in lines[tile * num_bits..].iter_mut().zip(levels.chunks_exact(num_levels)) {
        let mut word = 0;
        for (i, level) in levels.iter().enumerate() {
            word |= (u32::from(*level) & ((1 << num_bits) - 1)) << position(i, num_bits);
        }
        line.0[column] = word;
    }
}

/// Writes the weights of one output, rounded to bf16, to `row`, as many as `row` holds.
pub(super) fn copy_row(kind: BlockType, (heads, steps): (&[Line], &[Line]), output: usize, row: &mut [f32]) {
    let (tile, column) = (output / TILE_SIZE, output % TILE_SIZE);
    let number = |line: &Line| halves(line, tile)[column];
    for (idx, (step, row)) in steps.chunks_exact(step_lines(kind)).zip(row.chunks_mut(GROUP)).enumerate() {
        let (numbers, levels) = step.split_at(num_number_lines(kind));
        let mut head = [0.0; 2];
        for (to, line) in head.iter_mut().zip(self::head(kind, heads, (idx, step))) {
            *to = f16::from_bits(number(line)).to_f32();
        }
        let steps = kind.factors(number(&numbers[0])).map(|factors| kind.step(head, factors));
        for (input, weight) in row.iter_mut().enumerate() {
            let places = Places::of(kind.level_bits(), tile, input);
            let level = kind.level(places.stored(kind.level_bits(), levels, column));
            *weight = bf16::from_f32(steps[input / HALF_GROUP].weight(level)).to_f32();
        }
    }
}

/// The places of a level in the lines of a step: a line, and a position in its words.
#[derive(Clone, Copy)]
struct Places {
    /// The place of the lowest 4 bits, or of 8.
    low: (usize, usize),
    /// The place of the bits above the lowest 4.
    high: Option<(usize, usize)>,
}

impl Places {
    /// Returns the places of the level of one input, for a tile.
    #[inline(always)]
    fn of(bits: usize, tile: usize, input: usize) -> Self {
        if bits == 8 {
            return Self { low: (tile * 8 + input / 4, position(input % 4, 8)), high: None };
        }
        let low = (tile * NIBBLE_LINES + input / LINE_NIBBLES, position(input % LINE_NIBBLES, 4));
        let upper_bits = bits - 4;
        if upper_bits == 0 {
            return Self { low, high: None };
        }
        let line_levels = u32::BITS as usize / upper_bits;
        let line = PANEL_TILES * NIBBLE_LINES + tile * upper_bits + input / line_levels;
        Self { low, high: Some((line, position(input % line_levels, upper_bits))) }
    }

    /// Returns the stored level of the output `column` in the lines of a step; `bits` is that of [`Places::of`].
    fn stored(self, bits: usize, lines: &[Line], column: usize) -> u8 {
        let read = |(line, shift): (usize, usize), num_bits: usize| {
            (lines[line].0[column] >> shift & ((1 << num_bits) - 1)) as u8
        };
        match self.high {
            None => read(self.low, bits),
            Some(high) => read(self.low, 4) | read(high, bits - 4) << 4,
        }
    }
}

/// Returns the lines of a step that hold levels.
#[inline(always)]
pub(super) fn levels(kind: BlockType, step: &[Line]) -> &[Line] {
    &step[num_number_lines(kind)..]
}

/// Returns the levels of the inputs `2 * pair` and `2 * pair + 1` as bf16, less the level that stands for 0.
#[inline(always)]
pub(super) fn pairs<S: Simd>(simd: S, kind: BlockType, (lines, tile): (&[Line], usize), pair: usize) -> S::Integers {
    let Places { low: (line, shift), high } = Places::of(kind.level_bits(), tile, 2 * pair);
    let low = &lines[line].0;
    if kind.level_bits() == 8 {
        let zero = simd.splat(kind.zero_level());
        let [even, odd] = [simd.bits(low, shift, 8), simd.bits(low, shift + 16, 8)];
        return simd.pair_floats(simd.sub(even, zero), simd.sub(odd, zero));
    }
    let high = high.map(|(line, shift)| (&lines[line].0, shift));
    simd.look_up((low, shift), high, &TABLES[kind as usize])
}

/// Returns the levels of the inputs `2 * pair` and `2 * pair + 1` as 16-bit integers.
#[inline(always)]
pub(super) fn integers<S: Simd>(simd: S, kind: BlockType, (lines, tile): (&[Line], usize), pair: usize) -> S::Integers {
    let bits = kind.level_bits();
    let low_bits = low_bits(bits);
    let Places { low, high } = Places::of(bits, tile, 2 * pair);
    let low = half_bits(lines, low, low_bits);
    if kind.table().is_some() {
        return simd.look_up_integers(low, &INTEGERS[kind as usize]);
    }
    let Some(high) = high else { return simd.whole_numbers(low, None) };
    simd.whole_numbers(low, Some(half_bits(lines, high, bits - low_bits)))
}

/// Returns the number of bits of a level in the first lines of levels, of `bits` bits in all.
#[inline(always)]
const fn low_bits(bits: usize) -> usize {
    if bits == 8 { 8 } else { 4 }
}

/// Returns bits of the words of a line; a place is a line and the lowest of the bits.
#[inline(always)]
fn half_bits(lines: &[Line], (line, shift): (usize, usize), num_bits: usize) -> HalfBits<'_> {
    HalfBits { words: &lines[line].0, shift, num_bits }
}

/// Returns the lines of the head of a block that has the step `idx` of a panel.
#[inline(always)]
pub(super) fn head<'a>(kind: BlockType, heads: &'a [Line], (idx, step): (usize, &'a [Line])) -> &'a [Line] {
    if !kind.has_factors() {
        return &step[..head_lines(kind)];
    }
    &heads[idx / (kind.block_len() / GROUP) * head_lines(kind)..][..head_lines(kind)]
}

/// Returns the scales of a tile's outputs in a step; see [`BlockType::step`].
#[inline(always)]
pub(super) fn scales<S: Simd>(
    simd: S,
    kind: BlockType,
    (head, step): (&[Line], &[Line]),
    tile: usize,
) -> Scales<S::Vector> {
    let factors = &step[0];
    let scale = simd.widen_f16(&halves(&head[0], tile));
    let first_bit = 16 * tile;
    match kind {
        BlockType::IQ4_NL | BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 => [(scale, simd.splat(0.0)); 2],
        BlockType::Q4_1 | BlockType::Q5_1 => [(scale, simd.widen_f16(&halves(&head[1], tile))); 2],
        BlockType::Q4_K | BlockType::Q5_K => {
            let least = simd.mul(simd.widen_f16(&halves(&head[1], tile)), simd.bits(&factors.0, first_bit + 8, 8));
            [(simd.mul(scale, simd.bits(&factors.0, first_bit, 8)), simd.sub(simd.splat(0.0), least)); 2]
        }
        BlockType::Q2_K => {
            let least = simd.sub(simd.splat(0.0), simd.widen_f16(&halves(&head[1], tile)));
            let mut steps = [(scale, least); 2];
            for (half, (scale, least)) in steps.iter_mut().enumerate() {
                *scale = simd.mul(*scale, simd.bits(&factors.0, first_bit + 8 * half, 4));
                *least = simd.mul(*least, simd.bits(&factors.0, first_bit + 8 * half + 4, 4));
            }
            steps
        }
        BlockType::IQ4_XS | BlockType::Q3_K | BlockType::Q6_K => {
            let mut steps = [(scale, simd.splat(0.0)); 2];
            for (half, (scale, _)) in steps.iter_mut().enumerate() {
                let factor = simd.bits(&factors.0, first_bit + 8 * half, 8);
                *scale = simd.mul(*scale, simd.sub(factor, simd.splat(ZERO_FACTOR)));
            }
            steps
        }
    }
}

/// Returns the numbers of a line that belong to the outputs of a tile.
#[inline(always)]
fn halves(line: &Line, tile: usize) -> [u16; LANES] {
    let mut halves = [0; LANES];
    for (half, word) in halves.iter_mut().zip(line.0) {
        *half = (word >> (16 * tile)) as u16;
    }
    halves
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use numbers::FloatType;
    use proptest::prelude::*;

    use super::*;
    use crate::isa::Isa;
    use crate::linear::packed_weight::Stored;
    use crate::linear::tests::check_levels;
    use crate::linear::{PASS_INPUTS, PackedWeight, WeightType, linear_on};
    use crate::testing::numbers;

    /// Returns blocks of bits without order, with heads from -2 to 2.
    fn blocks(kind: BlockType, count: usize) -> Vec<u8> {
        let bits = numbers(count * kind.block_bytes(), 52).into_iter().map(f32::to_bits);
        let mut bytes: Vec<u8> = bits.map(|bits| (bits >> 8) as u8).collect();
        for block in bytes.chunks_exact_mut(kind.block_bytes()) {
            for number in 0..=usize::from(kind.has_least()) {
                block[kind.head_offset() + 2 * number + 1] &= 0xbf;
            }
        }
        bytes
    }

    /// A function that takes rows.
    type Take<'a> = dyn FnMut(&[u8]) + 'a;

    /// Returns a function that passes rows of `row_bytes` bytes.
    fn rows_of(bytes: &[u8], row_bytes: usize) -> impl Fn(Range<usize>, &mut Take<'_>) + Sync {
        move |rows, take| take(&bytes[rows.start * row_bytes..rows.end * row_bytes])
    }

    fn check(kind: BlockType, [rows, outputs, num_blocks]: [usize; 3], has_bias: bool) {
        let inputs = num_blocks * kind.block_len();
        let bytes = blocks(kind, outputs * num_blocks);
        let mut weights = Vec::new();
        kind.read(&bytes, &mut weights);
        let floats: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        let (x, bias) = (numbers(rows * inputs, 50), has_bias.then(|| numbers(outputs, 51)));
        for isa in Isa::available() {
            let row_bytes = num_blocks * kind.block_bytes();
            let packed = PackedWeight::of_blocks([outputs, inputs], kind, &rows_of(&bytes, row_bytes));
            let rows_of_floats = rows_of(&floats, inputs * size_of::<f32>());
            let stored = Stored { sizes: [outputs, inputs], dtype: FloatType::F32, rows: &rows_of_floats };
            let in_bf16 = PackedWeight::pack_for(isa, &stored, WeightType::Bf16);
            let mut y = vec![f32::NAN; rows * outputs];
            linear_on(isa, &x, &packed, bias.as_deref(), &mut y);
            check_levels(isa, (&packed, &weights), (&x, bias.as_deref()), &y);
            let row_of = |weight: &PackedWeight, output: usize| {
                let mut row = vec![f32::NAN; inputs];
                weight.copy_row(output, &mut row);
                row
            };
            for output in 0..outputs {
                assert_eq!(row_of(&packed, output), row_of(&in_bf16, output), "{isa} {kind:?}, output {output}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn blocks_multiply_exactly(
            rows in prop_oneof![Just(1), 1_usize..70], outputs in 1_usize..100, num_blocks in 1_usize..4, has_bias: bool,
        ) {
            for kind in BlockType::ALL {
                check(kind, [rows, outputs, num_blocks], has_bias);
            }
        }
    }

    #[test]
    fn several_passes_of_blocks_multiply_exactly() {
        for kind in [BlockType::Q4_K, BlockType::Q8_0, BlockType::IQ4_XS] {
            check(kind, [70, 161, 2 * PASS_INPUTS / kind.block_len() + 1], true);
            check(kind, [300, 33, 9216 / kind.block_len()], false);
        }
    }

    #[test]
    fn weights_take_little_more_than_their_blocks() {
        for kind in BlockType::ALL {
            let bytes = blocks(kind, 64 * 8);
            let row_bytes = 8 * kind.block_bytes();
            let sizes = [64, 8 * kind.block_len()];
            let packed = PackedWeight::of_blocks(sizes, kind, &rows_of(&bytes, row_bytes));
            let share = packed.size_bytes() as f64 / bytes.len() as f64;
            let most = match kind {
                // Levels of 2 and 3 bits take 4.
                BlockType::Q2_K => 1.77,
                BlockType::Q3_K => 1.35,
                // Factors of 6 bits take 16.
                BlockType::IQ4_XS => 1.08,
                _ => 1.03,
            };
            assert!((1.0..=most).contains(&share), "{kind:?}: {share}");
        }
    }
}
