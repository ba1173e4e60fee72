//! The data of a launch's rows, except logit biases and masks (`token_input`), as one array of 32-bit integers, which
//! one transfer brings to each device.
//!
//! Entry points: [`StepShape`], the sizes that a program is compiled for, [`pack`], which fills the array from a batch,
//! and [`StepShape::ranges`], the offsets of its parts. Floats are stored as their bits. If a launch has fewer rows or
//! tokens than its program, the rest of the array is padding: a padding row has 0 tokens, and the program writes
//! nothing for padding.

use std::ops::Range;

use backend::BLOCK_SIZE;
use backend::Batch;
use model::Fingerprint;
use model::sampling::columns;
use proto::MAX_HELD_BACK_TOKENS;

/// The sizes of a program, and so of the array, for one launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct StepShape {
    pub(super) rows: usize,
    pub(super) tokens_per_row: usize,
    /// The length of each row's block table.
    pub(super) blocks_per_row: usize,
}

/// A column of the sampler's input, with one value per row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampledColumn {
    Slot,
    /// The number of tokens in the row's context after this step.
    ContextLen,
    PromptLen,
    /// 1 if the row samples.
    IsSampled,
    /// A sampling parameter, by its index in [`columns`].
    Parameter(usize),
    /// One of the tokens that the row may not sample, or -1 for none.
    HeldBack(usize),
}

/// Returns the columns of the sampler's input, in order.
pub(super) fn sampled_columns() -> impl Iterator<Item = SampledColumn> {
    let own = [SampledColumn::Slot, SampledColumn::ContextLen, SampledColumn::PromptLen, SampledColumn::IsSampled];
    let parameters = columns().enumerate().map(|(index, _)| SampledColumn::Parameter(index));
    let held_back = (0..MAX_HELD_BACK_TOKENS).map(SampledColumn::HeldBack);
    own.into_iter().chain(parameters).chain(held_back)
}

/// The offsets of the parts of the array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ranges {
    /// `[1]`: index of the device among the devices that run the program together.
    pub(super) rank: Range<usize>,
    /// `[rows, tokens_per_row]`; -1, possible only as a row's first token, stands for the token that the row sampled
    /// last.
    pub(super) token_ids: Range<usize>,
    /// `[rows]`: position of each row's first token.
    pub(super) first_positions: Range<usize>,
    /// `[rows]`
    pub(super) num_tokens: Range<usize>,
    /// `[rows]`
    pub(super) slots: Range<usize>,
    /// `[rows, blocks_per_row]`
    pub(super) block_tables: Range<usize>,
    /// `[sampled_columns, rows]`
    pub(super) sampled: Range<usize>,
}

impl StepShape {
    /// The number of tokens of a launch, padding included.
    pub(super) fn num_tokens(&self) -> usize {
        self.rows * self.tokens_per_row
    }

    /// Returns the offsets of the parts of the array.
    pub(super) fn ranges(&self) -> Ranges {
        let Self { rows, tokens_per_row, blocks_per_row } = *self;
        let mut end = 0;
        let mut next = |len: usize| {
            let start = end;
            end += len;
            start..end
        };
        Ranges {
            rank: next(1),
            token_ids: next(rows * tokens_per_row),
            first_positions: next(rows),
            num_tokens: next(rows),
            slots: next(rows),
            block_tables: next(rows * blocks_per_row),
            sampled: next(rows * sampled_columns().count()),
        }
    }

    /// The length of the array.
    pub(super) fn len(&self) -> usize {
        self.ranges().sampled.end
    }
}

/// Returns the array for the rows of `batch` whose indices are `rows`, with the entries of [`Batch::sampled`] that
/// belong to these rows. The rank in the array is 0.
///
/// # Panics
/// When the rows do not fit `shape`.
pub(super) fn pack(batch: &Batch, rows: &[usize], shape: StepShape) -> Vec<i32> {
    let mut packed = vec![0; shape.len()];
    let ranges = shape.ranges();
    for (place, index) in rows.iter().enumerate() {
        let row = &batch.rows[*index];
        let tokens = &batch.token_ids[row.first_token..][..row.num_tokens];
        packed[ranges.token_ids.start + place * shape.tokens_per_row..][..tokens.len()].copy_from_slice(tokens);
        packed[ranges.first_positions.start + place] = (row.context_len - row.num_tokens) as i32;
        packed[ranges.num_tokens.start + place] = row.num_tokens as i32;
        packed[ranges.slots.start + place] = row.slot as i32;
        let table = batch.block_table(row);
        let table = &table[..table.len().min(row.context_len.div_ceil(BLOCK_SIZE))];
        let entries = &mut packed[ranges.block_tables.start + place * shape.blocks_per_row..][..table.len()];
        entries.iter_mut().zip(table).for_each(|(entry, block)| *entry = *block as i32);
    }
    let sampled = &mut packed[ranges.sampled];
    let parameters = batch.sampling_inputs().columns();
    for (index, entry) in batch.sampled.iter().enumerate() {
        let Some(place) = rows.iter().position(|row| *row == entry.row) else {
            continue;
        };
        let row = &batch.rows[entry.row];
        for (column, values) in sampled_columns().zip(sampled.chunks_exact_mut(shape.rows)) {
            values[place] = match column {
                SampledColumn::Slot => row.slot as i32,
                SampledColumn::ContextLen => row.context_len as i32,
                SampledColumn::PromptLen => entry.prompt_len as i32,
                SampledColumn::IsSampled => 1,
                SampledColumn::HeldBack(place) => entry.held_back.get(place).copied().unwrap_or(-1),
                SampledColumn::Parameter(column) => parameters[column][index].bits().cast_signed(),
            };
        }
    }
    packed
}

/// Writes `rank` into the array. The arrays of two ranks differ in nothing else.
pub(super) fn set_rank(packed: &mut [i32], shape: StepShape, rank: usize) {
    packed[shape.ranges().rank.start] = rank as i32;
}

/// Returns `fingerprint` with the elements of an array added, except its rank, so that the result is the same for all
/// ranks.
pub(super) fn fingerprint(fingerprint: Fingerprint, packed: &[i32], shape: StepShape) -> Fingerprint {
    let rank = shape.ranges().rank;
    // Two elements make one number of the hash, which takes half as long as one.
    [&packed[..rank.start], &packed[rank.end..]].into_iter().fold(fingerprint, |fingerprint, part| {
        let pairs = part.chunks(2).map(|pair| {
            pair.iter().rev().fold(0, |number: u64, element| number << 32 | u64::from(element.cast_unsigned()))
        });
        fingerprint.numbers(pairs)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_of_ranks_are_the_same() {
        let shape = StepShape { rows: 2, tokens_per_row: 1, blocks_per_row: 4 };
        let of = |rank, token| {
            let mut batch = Batch::default();
            batch.push_row(1, 3, &[token], &[7]);
            let mut packed = pack(&batch, &[0], shape);
            set_rank(&mut packed, shape, rank);
            assert_eq!(packed[shape.ranges().rank.start], rank as i32);
            fingerprint(Fingerprint::default(), &packed, shape)
        };
        assert_eq!(of(0, 5), of(3, 5));
        assert_ne!(of(0, 5), of(0, 6));
    }
}
