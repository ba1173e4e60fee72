//! Blocks of integers of few bits that share scales, as GGUF files store them (`ggml-org/ggml`, src/ggml-common.h).
//!
//! Entry point: [`BlockType`]. [`BlockType::head`] and [`BlockType::group`] return the numbers of a block as they are
//! stored. [`BlockType::factors`] and [`BlockType::step`] compute scales from them. [`BlockType::read`] returns the
//! weights of whole blocks.
//!
//! A block has groups of 32 levels. Each half of a group has a scale and a minimum (`d`, `m` in ggml); some types share
//! them. A weight is `scale · level - minimum`. In f32 the product is exact. The weight is exact too if the type has no
//! minimums of its own. A level is an unsigned integer that is stored as it is, or an entry of the type's
//! [`BlockType::table`], of which the index is stored.

use half::f16;

/// The number of levels of a group.
pub const GROUP: usize = 32;
/// The number of levels that have the same scale in all types.
pub const HALF_GROUP: usize = GROUP / 2;
/// The number that stands for a factor of 0, for types whose factors have signs.
pub const ZERO_FACTOR: f32 = 128.0;
/// The number of levels of a table.
pub const TABLE_LEVELS: usize = 16;
/// The number of weights of the blocks that have heads for several groups.
const LARGE: usize = 256;
/// The levels of IQ4_NL and IQ4_XS.
const IQ4_LEVELS: [f32; TABLE_LEVELS] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// A type of blocks, with its name in GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "the names of the format")]
pub enum BlockType {
    IQ4_NL,
    IQ4_XS,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
}

/// The scale of half of a group, and its minimum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The difference between the weights of two neighbouring levels.
    pub scale: f32,
    /// The number that is subtracted from all weights.
    pub least: f32,
}

/// A group of a block, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The stored levels of the weights, in order. [`BlockType::level`] reads them.
    pub levels: [u8; GROUP],
    /// The integers by which the head of the block is multiplied, two bytes; 0 if the type has none. In Q4_K and Q5_K,
    /// the first byte belongs to the scale, and the second to the minimum. In the other types, each byte belongs
    /// to half of the group. [`BlockType::factors`] reads them.
    pub factors: u16,
}

impl BlockType {
    /// All types.
    pub const ALL: [Self; 12] = [
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q4_K,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q5_K,
        Self::Q6_K,
        Self::Q8_0,
    ];

    /// The number of weights of a block.
    #[inline(always)]
    pub const fn block_len(self) -> usize {
        if self.has_factors() { LARGE } else { GROUP }
    }

    /// The number of bytes of a block.
    #[inline(always)]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::IQ4_XS => 136,
            Self::Q4_1 => 20,
            Self::Q4_K => 144,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::Q8_0 => 34,
        }
    }

    /// True if a block has several groups, and integers that multiply its head in each of them.
    #[inline(always)]
    pub const fn has_factors(self) -> bool {
        matches!(self, Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS)
    }

    /// True if the head has a second number, which gives the minimums.
    #[inline(always)]
    pub const fn has_least(self) -> bool {
        matches!(self, Self::Q2_K | Self::Q4_1 | Self::Q4_K | Self::Q5_1 | Self::Q5_K)
    }

    /// The number of bits that the largest stored level takes; 4 for types with fewer.
    #[inline(always)]
    pub const fn level_bits(self) -> usize {
        match self {
            Self::Q2_K | Self::Q3_K | Self::Q4_0 | Self::Q4_1 | Self::Q4_K | Self::IQ4_NL | Self::IQ4_XS => 4,
            Self::Q5_0 | Self::Q5_1 | Self::Q5_K => 5,
            Self::Q6_K => 6,
            Self::Q8_0 => 8,
        }
    }

    /// The offset of the head in a block, in bytes.
    pub const fn head_offset(self) -> usize {
        match self {
            Self::Q2_K => 80,
            Self::Q3_K => 108,
            Self::Q6_K => 208,
            Self::Q4_0 | Self::Q4_1 | Self::Q4_K | Self::Q5_0 | Self::Q5_1 | Self::Q5_K | Self::Q8_0 => 0,
            Self::IQ4_NL | Self::IQ4_XS => 0,
        }
    }

    /// Returns the levels of which blocks store the indices; `None` if blocks store the levels.
    #[inline(always)]
    pub const fn table(self) -> Option<&'static [f32; TABLE_LEVELS]> {
        match self {
            Self::IQ4_NL | Self::IQ4_XS => Some(&IQ4_LEVELS),
            _ => None,
        }
    }

    /// Returns the level that is stored as `stored`.
    ///
    /// # Panics
    /// When `stored` has more than [`BlockType::level_bits`], and the type has a table.
    #[inline(always)]
    pub const fn level(self, stored: u8) -> f32 {
        match self.table() {
            Some(levels) => levels[stored as usize],
            None => stored as f32,
        }
    }

    /// Returns the two numbers, as bits of [`f16`], from which the steps of a block are computed; the second is 0 if
    /// the type does not have it.
    ///
    /// # Panics
    /// When `block` does not have [`BlockType::block_bytes`].
    pub fn head(self, block: &[u8]) -> [u16; 2] {
        let at = |offset: usize| u16::from_le_bytes([block[offset], block[offset + 1]]);
        let offset = self.head_offset();
        [at(offset), if self.has_least() { at(offset + 2) } else { 0 }]
    }

    /// Returns the group `index` of a block.
    ///
    /// # Panics
    /// When `block` does not have [`BlockType::block_bytes`], or the block has no such group.
    pub fn group(self, block: &[u8], index: usize) -> Group {
        assert_eq!(block.len(), self.block_bytes(), "bytes of a block of {self:?}");
        assert!(index < self.block_len() / GROUP, "group {index} of a block of {self:?}");
        // The first and the second half of the larger blocks have the same layout.
        let (part, quarter) = (index / 4, index % 4);
        let factors = match self {
            Self::Q2_K => u16::from_le_bytes([block[2 * index], block[2 * index + 1]]),
            Self::Q3_K => u16::from_le_bytes([0, 1].map(|half| factor_of_half(&block[96..108], 2 * index + half))),
            Self::Q4_K | Self::Q5_K => u16::from_le_bytes(factors(&block[4..16], index)),
            Self::Q6_K => u16::from_le_bytes([0, 1].map(|half| block[192 + 2 * index + half] ^ 0x80)),
            Self::IQ4_XS => u16::from_le_bytes([factor_of_group(&block[2..8], index); 2]),
            Self::IQ4_NL | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 0,
        };
        let level = |i: usize| match self {
            Self::Q2_K => block[16 + 32 * part + i] >> (2 * quarter) & 3,
            Self::Q3_K => (block[32 + 32 * part + i] >> (2 * quarter) & 3) | bit(block[i], index) << 2,
            Self::IQ4_NL | Self::Q4_0 => halved(&block[2..], i),
            Self::IQ4_XS => halved(&block[8 + HALF_GROUP * index..], i),
            Self::Q4_1 => halved(&block[4..], i),
            Self::Q4_K => block[16 + 32 * (index / 2) + i] >> (4 * (index % 2)) & 15,
            Self::Q5_0 => halved(&block[6..], i) | bit(block[2 + i / 8], i % 8) << 4,
            Self::Q5_1 => halved(&block[8..], i) | bit(block[4 + i / 8], i % 8) << 4,
            Self::Q5_K => (block[48 + 32 * (index / 2) + i] >> (4 * (index % 2)) & 15) | bit(block[16 + i], index) << 4,
            Self::Q6_K => {
                let low = block[64 * part + 32 * (quarter % 2) + i] >> (4 * (quarter / 2)) & 15;
                low | (block[128 + 32 * part + i] >> (2 * quarter) & 3) << 4
            }
            Self::Q8_0 => block[2 + i].wrapping_add(128),
        };
        Group { levels: std::array::from_fn(level), factors }
    }

    /// Returns the two numbers by which the numbers of a head are multiplied, for each half of a group.
    #[inline(always)]
    pub fn factors(self, factors: u16) -> [[f32; 2]; 2] {
        let [low, high] = factors.to_le_bytes();
        let nibbles = |byte: u8| [byte & 15, byte >> 4].map(f32::from);
        let signed = |byte: u8| [f32::from(byte) - ZERO_FACTOR; 2];
        match self {
            Self::Q2_K => [nibbles(low), nibbles(high)],
            Self::IQ4_XS | Self::Q3_K | Self::Q6_K => [signed(low), signed(high)],
            Self::Q4_K | Self::Q5_K => [[low, high].map(f32::from); 2],
            Self::IQ4_NL | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => [[1.0; 2]; 2],
        }
    }

    /// Returns the step of half of a group, from the head of its block and the factors of that half.
    #[inline(always)]
    pub fn step(self, head: [f32; 2], factors: [f32; 2]) -> Step {
        let scale = head[0] * factors[0];
        let least = match self {
            Self::Q2_K | Self::Q4_K | Self::Q5_K => head[1] * factors[1],
            Self::Q4_1 | Self::Q5_1 => -head[1],
            Self::Q3_K | Self::Q4_0 | Self::Q5_0 | Self::Q6_K | Self::Q8_0 => self.zero_level() * scale,
            Self::IQ4_NL | Self::IQ4_XS => 0.0,
        };
        Step { scale, least }
    }

    /// The level that stands for 0; 0 for types with minimums or a table.
    #[inline(always)]
    pub const fn zero_level(self) -> f32 {
        match self {
            Self::IQ4_NL | Self::IQ4_XS => 0.0,
            Self::Q2_K | Self::Q4_1 | Self::Q4_K | Self::Q5_1 | Self::Q5_K => 0.0,
            Self::Q3_K => 4.0,
            Self::Q4_0 => 8.0,
            Self::Q5_0 => 16.0,
            Self::Q6_K => 32.0,
            Self::Q8_0 => 128.0,
        }
    }

    /// Appends the weights of some blocks to `floats`.
    ///
    /// # Panics
    /// When `blocks` are not whole blocks.
    pub fn read(self, blocks: &[u8], floats: &mut Vec<f32>) {
        assert!(blocks.len().is_multiple_of(self.block_bytes()), "{} bytes of blocks of {self:?}", blocks.len());
        for block in blocks.chunks_exact(self.block_bytes()) {
            let head = self.head(block).map(|bits| f16::from_bits(bits).to_f32());
            for index in 0..self.block_len() / GROUP {
                let Group { levels, factors } = self.group(block, index);
                for (levels, factors) in levels.as_chunks::<HALF_GROUP>().0.iter().zip(self.factors(factors)) {
                    let step = self.step(head, factors);
                    floats.extend(levels.map(|stored| step.weight(self.level(stored))));
                }
            }
        }
    }

    /// True if all weights of some blocks are finite.
    pub fn are_finite(self, blocks: &[u8]) -> bool {
        // The product of a finite f16 and of integers of 8 bits is far below the largest f32.
        let is_finite = |bits| f16::from_bits(bits).is_finite();
        blocks.chunks_exact(self.block_bytes()).all(|block| self.head(block).into_iter().all(is_finite))
    }
}

impl Step {
    /// Returns the weight of a level.
    #[inline(always)]
    pub fn weight(self, level: f32) -> f32 {
        self.scale * level - self.least
    }
}

fn bit(byte: u8, position: usize) -> u8 {
    byte >> position & 1
}

/// Returns a level of 16 bytes: the low halves of the bytes come first.
fn halved(bytes: &[u8], i: usize) -> u8 {
    bytes[i % HALF_GROUP] >> (4 * (i / HALF_GROUP)) & 15
}

/// Returns the two factors, of 6 bits, of a group of Q4_K or Q5_K.
fn factors(packed: &[u8], index: usize) -> [u8; 2] {
    if index < 4 {
        return [packed[index] & 63, packed[index + 4] & 63];
    }
    let (shared, scale, least) = (packed[index + 4], packed[index - 4], packed[index]);
    [(shared & 15) | (scale >> 6) << 4, shared >> 4 | (least >> 6) << 4]
}

/// Returns the factor of a group of IQ4_XS, which has 6 bits and is from -32 to 31, plus [`ZERO_FACTOR`].
fn factor_of_group(packed: &[u8], index: usize) -> u8 {
    let low = packed[2 + index / 2] >> (4 * (index % 2)) & 15;
    let high = packed[index / 4] >> (2 * (index % 4)) & 3;
    (low | high << 4) + (ZERO_FACTOR as u8 - 32)
}

/// Returns the factor of half of a group of Q3_K, which has 6 bits and is from -32 to 31, plus [`ZERO_FACTOR`].
fn factor_of_half(packed: &[u8], half: usize) -> u8 {
    let low = packed[half % 8] >> (4 * (half / 8)) & 15;
    let high = packed[8 + half % 4] >> (2 * (half / 4)) & 3;
    (low | high << 4) + (ZERO_FACTOR as u8 - 32)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use candle_core::CpuStorage;
    use candle_core::quantized::GgmlDType;

    use super::*;

    /// The weights of the first block of [`blocks`], with the head 1, as computed by `gguf.quants` of llama.cpp.
    const IQ4_NL: [i16; 32] = [
        -104, -49, 53, 89, -22, 89, -49, -65, -127, 53, -10, -22, 53, 38, 53, -65, 1, 38, -127, -35, 53, 1, -127, 25,
        -49, -22, 13, 69, -65, 113, 69, -35,
    ];
    /// The same for the other type that candle does not have.
    const IQ4_XS: [i16; 256] = [
        196, 260, 508, -212, 40, 88, -212, -152, -212, 260, -356, -4, 40, -100, 332, 416, 508, -100, 196, 88, -52,
        -276, 260, -452, -276, 140, -100, -4, 260, 416, 416, 140, 3328, 1120, 1120, 3328, 2080, 4064, -2848, -2208,
        1120, -1216, 2080, -1696, 320, -2848, 4064, 704, 2656, -1216, -416, 704, 1568, -1696, -2848, 2656, 1120, -3616,
        704, -32, 320, -3616, -2848, -1216, 630, -234, 180, -2034, -2034, -234, -1602, -954, 180, -2034, 882, 882,
        1170, -684, 882, 396, -2034, -2034, 1494, 630, -450, 1494, 180, 1494, -234, -1242, 630, 2286, -2034, 1170,
        -1242, 2286, -415, 190, 5, -520, 565, 5, -175, 265, 190, 445, -415, -50, 565, 345, -245, -245, -110, -635,
        -175, -415, 265, -110, -415, 65, 265, 445, -635, -635, 565, 265, -50, -110, -988, 260, -988, -1794, -650, 910,
        572, -2938, 2158, 1274, -338, -1794, -988, 3302, 2158, 572, -650, -2938, -988, 260, 572, 2158, -2314, -988,
        -650, -338, -26, 3302, 572, -338, -2938, 910, 88, 88, -52, 508, -356, -356, -100, 140, -52, -452, 416, -452,
        40, -4, 508, -52, -212, 196, -356, -452, 88, 88, 140, 508, -100, -152, 40, 40, -276, 196, 508, 140, 390, -1470,
        1140, -300, 2670, -1050, -3810, 2070, -1950, 1140, 750, 1590, 1590, 30, -3810, -1950, 750, -3120, -1470, -1950,
        -1950, 1590, 30, 390, 390, 3390, -300, -1470, 3390, 1140, 750, -300, 104, 712, -1016, -520, -664, -832, 904,
        -392, 904, 104, -392, -832, -392, 712, -520, 424, 104, -832, 904, 552, -1016, -520, 8, -1016, 8, -80, -80, -80,
        -1016, 200, 904, 304,
    ];

    /// Returns candle's name of a type; `None` if candle does not have the type.
    fn of_candle(kind: BlockType) -> Option<GgmlDType> {
        Some(match kind {
            BlockType::IQ4_NL | BlockType::IQ4_XS => return None,
            BlockType::Q2_K => GgmlDType::Q2K,
            BlockType::Q3_K => GgmlDType::Q3K,
            BlockType::Q4_0 => GgmlDType::Q4_0,
            BlockType::Q4_1 => GgmlDType::Q4_1,
            BlockType::Q4_K => GgmlDType::Q4K,
            BlockType::Q5_0 => GgmlDType::Q5_0,
            BlockType::Q5_1 => GgmlDType::Q5_1,
            BlockType::Q5_K => GgmlDType::Q5K,
            BlockType::Q6_K => GgmlDType::Q6K,
            BlockType::Q8_0 => GgmlDType::Q8_0,
        })
    }

    /// Returns `count` blocks of bits without order, with heads from -2 to 2.
    fn blocks(kind: BlockType, count: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let mut bytes: Vec<u8> = (0..count * kind.block_bytes()).map(|_| random()).collect();
        for block in bytes.chunks_exact_mut(kind.block_bytes()) {
            for number in 0..=usize::from(kind.has_least()) {
                block[kind.head_offset() + 2 * number + 1] &= 0xbf;
            }
        }
        bytes
    }

    #[test]
    fn weights_are_those_of_candle() {
        for kind in BlockType::ALL {
            let (Some(same), bytes) = (of_candle(kind), blocks(kind, 64)) else { continue };
            assert_eq!((same.block_size(), same.type_size()), (kind.block_len(), kind.block_bytes()), "{kind:?}");
            let num_weights = 64 * kind.block_len();
            let Ok(CpuStorage::F32(expected)) = same.from_data(Cow::Borrowed(&bytes)).dequantize(num_weights) else {
                panic!("candle does not read {kind:?}");
            };
            let mut weights = Vec::new();
            kind.read(&bytes, &mut weights);
            assert_eq!(weights.len(), num_weights);
            for (i, (weight, expected)) in weights.iter().zip(&expected).enumerate() {
                assert_eq!(weight, expected, "{kind:?}, weight {i}");
            }
            assert!(kind.are_finite(&bytes), "{kind:?}");
        }
    }

    #[test]
    fn weights_of_tables_are_those_of_llama_cpp() {
        for (kind, expected) in [(BlockType::IQ4_NL, &IQ4_NL[..]), (BlockType::IQ4_XS, &IQ4_XS[..])] {
            let mut bytes = blocks(kind, 1);
            bytes[..2].copy_from_slice(&f16::ONE.to_le_bytes());
            let mut weights = Vec::new();
            kind.read(&bytes, &mut weights);
            assert_eq!(weights, expected.iter().map(|weight| f32::from(*weight)).collect::<Vec<_>>(), "{kind:?}");
            assert!(of_candle(kind).is_none() && kind.are_finite(&bytes), "{kind:?}");
        }
    }

    #[test]
    fn levels_fit_their_bits() {
        for kind in BlockType::ALL {
            let bytes = blocks(kind, 64);
            let groups = bytes
                .chunks_exact(kind.block_bytes())
                .flat_map(|block| (0..kind.block_len() / GROUP).map(move |index| kind.group(block, index)));
            let largest = groups.flat_map(|group| group.levels).max().unwrap();
            assert!(usize::from(largest) < 1 << kind.level_bits(), "{kind:?} has the level {largest}");
        }
    }

    #[test]
    fn heads_that_are_not_finite_are_found() {
        for kind in BlockType::ALL {
            for number in 0..=usize::from(kind.has_least()) {
                for bad in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
                    let mut bytes = blocks(kind, 3);
                    let at = kind.block_bytes() + kind.head_offset() + 2 * number;
                    bytes[at..at + 2].copy_from_slice(&bad.to_le_bytes());
                    assert!(!kind.are_finite(&bytes), "{kind:?} {bad}");
                }
            }
        }
    }
}
