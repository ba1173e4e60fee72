//! Integers of 4 or 8 bits, packed into words of 32 bits, with a scale and a zero point for each row and group of
//! columns.
//!
//! Entry point: [`Integers`]. The value of an element is (q - z) · s, with the integer q, the zero point z and the
//! scale s. Rows are the outputs of a linear layer, columns its inputs. Three forms are read: GPTQ (Frantar et al.,
//! 2022; AutoGPTQ), AWQ (Lin et al., 2023; AutoAWQ's GEMM) and the packed form of compressed-tensors, whose z is always
//! half of the range. In the table, n is the number of integers in a word.
//!
//! | form | tensors | a word, lowest bits first |
//! |---|---|---|
//! | GPTQ | `qweight [in / n, out]`, `qzeros [groups, out / n]`, `scales [groups, out]`, `g_idx [in]` | n inputs |
//! | AWQ | `qweight [in, out / 8]`, `qzeros [groups, out / 8]`, `scales [groups, out]` | outputs 0 2 4 6 1 3 5 7 |
//! | packed | `weight_packed [out, in / n]`, `weight_scale [out, groups]`, `weight_g_idx [in]` | n inputs |

use std::ops::Range;

use crate::weights::pages::Pages;

/// The position in a word of each of AWQ's eight outputs.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The order of the integers in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::weights) enum Packing {
    /// A word contains several inputs of one output; an output is a column of words.
    Gptq,
    /// A word contains one input of several outputs.
    Awq,
    /// A word contains several inputs of one output; an output is a row of words.
    Rows,
}

/// A matrix of integers.
#[derive(Debug)]
pub(in crate::weights) struct Integers<'a> {
    pub(in crate::weights) num_rows: usize,
    pub(in crate::weights) num_columns: usize,
    pub(in crate::weights) packing: Packing,
    /// The number of bits of an integer, 4 or 8.
    pub(in crate::weights) num_bits: usize,
    pub(in crate::weights) words: Pages<'a>,
    /// The group of each column.
    pub(in crate::weights) groups: Vec<u32>,
    /// The scale of each group and row, `[groups, rows]`.
    pub(in crate::weights) scales: Vec<f32>,
    /// The zero point of each group and row, `[groups, rows]`.
    pub(in crate::weights) zeros: Vec<f32>,
}

impl Integers<'_> {
    pub(super) fn read(&self, rows: Range<usize>, floats: &mut Vec<f32>) {
        let words = Words { bytes: self.words.bytes(), num_bits: self.num_bits };
        let (num_rows, num_columns) = (self.num_rows, self.num_columns);
        let per_word = words.per_word();
        match self.packing {
            Packing::Gptq => self.read_with(rows, floats, |row, column| {
                words.integer(column / per_word * num_rows + row, column % per_word)
            }),
            Packing::Awq => self.read_with(rows, floats, |row, column| {
                words.integer(column * (num_rows / per_word) + row / per_word, AWQ_PLACES[row % per_word])
            }),
            Packing::Rows => {
                let row_words = num_columns.div_ceil(per_word);
                self.read_with(rows, floats, |row, column| {
                    words.integer(row * row_words + column / per_word, column % per_word)
                });
            }
        }
    }

    fn read_with(&self, rows: Range<usize>, floats: &mut Vec<f32>, integer: impl Fn(usize, usize) -> u32) {
        for row in rows {
            floats.extend(self.groups.iter().enumerate().map(|(column, group)| {
                let place = *group as usize * self.num_rows + row;
                (integer(row, column) as f32 - self.zeros[place]) * self.scales[place]
            }));
        }
    }
}

/// Returns the zero points `[groups, rows]` that a tensor `[groups, words]` of GPTQ or AWQ stores. Each zero point is
/// `offset` larger than the stored number, modulo the range of an integer: the older of GPTQ's two formats stores the
/// zero point minus one.
pub(in crate::weights) fn zeros(
    words: Words<'_>,
    packing: Packing,
    [num_groups, num_rows]: [usize; 2],
    offset: u32,
) -> Vec<f32> {
    let per_word = words.per_word();
    let group_words = num_rows.div_ceil(per_word);
    let zero = |index: usize| {
        let (group, row) = (index / num_rows, index % num_rows);
        let place = if packing == Packing::Awq { AWQ_PLACES[row % per_word] } else { row % per_word };
        let stored = words.integer(group * group_words + row / per_word, place);
        ((stored + offset) & words.mask()) as f32
    };
    (0..num_groups * num_rows).map(zero).collect()
}

/// Little-endian words of integers.
#[derive(Debug, Clone, Copy)]
pub(in crate::weights) struct Words<'a> {
    pub(in crate::weights) bytes: &'a [u8],
    /// The number of bits of an integer, 4 or 8.
    pub(in crate::weights) num_bits: usize,
}

impl Words<'_> {
    fn per_word(self) -> usize {
        u32::BITS as usize / self.num_bits
    }

    fn mask(self) -> u32 {
        (1 << self.num_bits) - 1
    }

    /// Returns the integer at position `place` of a word, counted from the lowest bits.
    fn integer(self, word: usize, place: usize) -> u32 {
        let bytes = &self.bytes[word * size_of::<u32>()..][..size_of::<u32>()];
        let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        word >> (place * self.num_bits) & self.mask()
    }
}
