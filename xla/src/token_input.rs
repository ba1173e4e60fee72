//! The logit biases and token masks of rows, as arrays of 32-bit integers that a sampler reads in addition to the
//! columns of the packed step.
//!
//! Entry point: [`TokenInput`]. Only [`BatchSampler::Everything`](model::sampling::BatchSampler) reads the arrays, and
//! an array is packed only for launches with a row that uses it. For other launches of this sampler, each device keeps
//! one neutral array per size.

use backend::{Batch, SampledRow};
use model::sampling::TokenMask;
use proto::MAX_LOGIT_BIASES;

/// One of the arrays, in the order of the sampler's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TokenInput {
    /// `[2 * rows, MAX_LOGIT_BIASES]`: token ids of each row, -1 in unused entries, then the bits of the biases.
    LogitBias,
    /// `[rows, words]`: bit `i % 32` of a row's word `i / 32` is 1 if the row may choose token i.
    Mask,
}

/// The numbers that determine the sizes of the arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TokenSizes {
    /// Rows of the launch, padding included.
    pub(super) rows: usize,
    pub(super) vocab_size: usize,
}

impl TokenInput {
    /// All inputs, in the order of the sampler's arguments.
    pub(super) const ALL: [Self; 2] = [Self::LogitBias, Self::Mask];

    /// Returns the dimensions of the array.
    pub(super) fn dims(self, sizes: TokenSizes) -> [usize; 2] {
        let TokenSizes { rows, vocab_size } = sizes;
        match self {
            Self::LogitBias => [2 * rows, MAX_LOGIT_BIASES],
            Self::Mask => [rows, TokenMask::num_words(vocab_size)],
        }
    }

    /// Returns an array with which the sampler changes no score.
    pub(super) fn neutral(self, sizes: TokenSizes) -> Vec<i32> {
        match self {
            // -1 is the token id of an unused bias, and a mask word with all bits set.
            Self::LogitBias | Self::Mask => vec![-1; self.dims(sizes).iter().product()],
        }
    }

    /// Returns the array for a launch of `sizes` whose rows have the indices `rows` in `batch`; `None` if no row uses
    /// the input.
    pub(super) fn pack(self, batch: &Batch, rows: &[usize], sizes: TokenSizes) -> Option<Vec<i32>> {
        let mut packed = None;
        for entry in batch.sampled.iter().filter(|entry| self.is_asked_for(entry)) {
            if let Some(place) = rows.iter().position(|row| *row == entry.row) {
                let packed = packed.get_or_insert_with(|| self.neutral(sizes));
                self.write(packed, (place, sizes), entry);
            }
        }
        packed
    }

    fn is_asked_for(self, entry: &SampledRow) -> bool {
        match self {
            Self::LogitBias => !entry.params.logit_bias.is_empty(),
            Self::Mask => entry.mask.is_some(),
        }
    }

    fn write(self, packed: &mut [i32], (place, sizes): (usize, TokenSizes), entry: &SampledRow) {
        match self {
            Self::LogitBias => {
                let (token_ids, biases) = packed.split_at_mut(packed.len() / 2);
                for (index, bias) in entry.params.logit_bias.iter().enumerate() {
                    token_ids[place * MAX_LOGIT_BIASES + index] = bias.token_id.cast_signed();
                    biases[place * MAX_LOGIT_BIASES + index] = bias.bias.to_bits().cast_signed();
                }
            }
            Self::Mask => {
                let [_, width] = self.dims(sizes);
                let words = entry.mask.as_ref().map_or([].as_slice(), TokenMask::words);
                let row = &mut packed[place * width..][..width];
                row.iter_mut().zip(words).for_each(|(packed, word)| *packed = word.cast_signed());
            }
        }
    }
}
