//! The inputs of a program: its sizes, and the arrays that describe the rows of a step.
//!
//! Entry points: [`RowInputs`] for the decoder, [`SampledInputs`] for the sampler. The tokens of a step are
//! `[rows, tokens_per_row]`, flattened.

use devices::{DecodeAttention, DecodeLoop, HeadForm};
use model::graph::DType;

use super::emitter::Emitter;
use super::tensor::{Tensor, Type};
use crate::step_input::{SampledColumn, StepShape, sampled_columns};
use crate::token_input::TokenInput;

/// The sizes that a program is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) rows: usize,
    pub(crate) tokens_per_row: usize,
    pub(crate) blocks_per_row: usize,
    pub(crate) num_slots: usize,
    pub(crate) max_total_tokens: usize,
    /// The maximum number of top tokens that a row can report.
    pub(crate) top_tokens: usize,
    /// The number of devices that run the program together.
    pub(crate) num_devices: usize,
    /// How the attention loop multiplies queries of decoding rows with the keys of several KV heads.
    pub(crate) decode_heads: HeadForm,
    /// The chunks that an iteration of the attention loop of decoding rows reads.
    pub(crate) decode_loop: DecodeLoop,
    /// How rows that decode attend to their contexts.
    pub(crate) decode_attention: DecodeAttention,
    /// The number of bytes of keys, or of values, that the attention loop may gather at a time. It gathers more if it
    /// cannot make its chunks smaller.
    pub(crate) chunk_bytes: usize,
    /// The length of context, in tokens, for which the attention loop of decoding rows has a fixed number of
    /// iterations; `None` if the number of iterations depends on the contexts.
    pub(crate) context: Option<usize>,
}

/// The rows of a step as the decoder reads them.
#[derive(Debug, Clone)]
pub(crate) struct RowInputs {
    /// `[]` i32
    pub(super) rank: Tensor,
    /// `[tokens]` i32
    pub(super) token_ids: Tensor,
    /// `[tokens]` i32
    pub(super) positions: Tensor,
    /// `[tokens]`: false for padding.
    pub(super) is_token: Tensor,
    /// `[rows]` i32
    pub(super) first_positions: Tensor,
    /// `[rows]` i32
    pub(super) num_tokens: Tensor,
    /// `[rows]` i32
    pub(super) slots: Tensor,
    /// `[rows, blocks_per_row]` i32
    pub(super) block_tables: Tensor,
}

/// The rows of a step as the sampler reads them.
#[derive(Debug, Clone)]
pub(crate) struct SampledInputs {
    /// `[sampled_columns, rows]` i32
    columns: Tensor,
    /// `[rows]` i32
    pub(super) slots: Tensor,
    /// `[rows]` i32
    pub(super) context_lens: Tensor,
    /// `[rows]` i32
    pub(super) prompt_lens: Tensor,
    /// `[rows]`
    pub(super) is_sampled: Tensor,
    /// The arrays of [`TokenInput::ALL`], in its order; empty for samplers that do not read them.
    token_inputs: Vec<Tensor>,
}

impl RowInputs {
    /// Splits the packed array `[StepShape::len]`, and returns the decoder's inputs and the sampler's columns,
    /// `[sampled_columns, rows]`.
    pub(crate) fn unpack(emitter: &mut Emitter, packed: &Tensor, shape: StepShape) -> (Self, Tensor) {
        let StepShape { rows, tokens_per_row, blocks_per_row } = shape;
        let ranges = shape.ranges();
        let rank = emitter.slice(packed, 0, ranges.rank); // [1]
        let rank = emitter.reshape(&rank, &[]); // []
        let token_ids = emitter.slice(packed, 0, ranges.token_ids); // [tokens]
        let first_positions = emitter.slice(packed, 0, ranges.first_positions); // [rows]
        let num_tokens = emitter.slice(packed, 0, ranges.num_tokens); // [rows]
        let slots = emitter.slice(packed, 0, ranges.slots); // [rows]
        let block_tables = emitter.slice(packed, 0, ranges.block_tables);
        let block_tables = emitter.reshape(&block_tables, &[rows, blocks_per_row]); // [rows, blocks_per_row]
        let sampled = emitter.slice(packed, 0, ranges.sampled);
        let sampled = emitter.reshape(&sampled, &[sampled_columns().count(), rows]); // [columns, rows]
        let offsets = emitter.iota(1, Type::new([rows, tokens_per_row], DType::I32)); // [rows, tokens_per_row]
        let starts = emitter.broadcast(&first_positions, &[0], offsets.dims()); // [rows, tokens_per_row]
        let positions = emitter.elementwise("add", &[&starts, &offsets]); // [rows, tokens_per_row]
        let positions = emitter.reshape(&positions, &[shape.num_tokens()]); // [tokens]
        let ends = emitter.broadcast(&num_tokens, &[0], offsets.dims()); // [rows, tokens_per_row]
        let is_token = emitter.compare("LT", &offsets, &ends); // [rows, tokens_per_row]
        let is_token = emitter.reshape(&is_token, &[shape.num_tokens()]); // [tokens]
        (Self { rank, token_ids, positions, is_token, first_positions, num_tokens, slots, block_tables }, sampled)
    }

    /// Returns the values of x `[tokens, n]` at each row's last token, `[rows, n]`. The values of rows without tokens
    /// are undefined.
    pub(crate) fn last_tokens(&self, emitter: &mut Emitter, x: &Tensor, sizes: &Sizes) -> Tensor {
        if sizes.tokens_per_row == 1 {
            return x.clone();
        }
        let row = emitter.iota(0, self.num_tokens.ty.clone()); // [rows]
        let stride = emitter.splat(sizes.tokens_per_row as f64, row.ty.clone()); // [rows]
        let start = emitter.elementwise("multiply", &[&row, &stride]); // [rows]
        let end = emitter.elementwise("add", &[&start, &self.num_tokens]); // [rows]
        let one = emitter.splat(1.0, row.ty.clone()); // [rows]
        let last = emitter.elementwise("subtract", &[&end, &one]); // [rows]
        emitter.gather_rows(x, &last) // [rows, n]
    }
}

impl SampledInputs {
    /// Splits `columns` `[sampled_columns, rows]`, and keeps `token_inputs` unchanged.
    pub(crate) fn unpack(emitter: &mut Emitter, columns: &Tensor, token_inputs: Vec<Tensor>) -> Self {
        let slots = row_of(emitter, columns, SampledColumn::Slot);
        let context_lens = row_of(emitter, columns, SampledColumn::ContextLen);
        let prompt_lens = row_of(emitter, columns, SampledColumn::PromptLen);
        let is_sampled = row_of(emitter, columns, SampledColumn::IsSampled);
        let zero = emitter.splat(0.0, is_sampled.ty.clone()); // [rows]
        let is_sampled = emitter.compare("GT", &is_sampled, &zero); // [rows]
        Self { columns: columns.clone(), slots, context_lens, prompt_lens, is_sampled, token_inputs }
    }

    /// Returns one column, `[rows]` i32.
    pub(super) fn column(&self, emitter: &mut Emitter, column: SampledColumn) -> Tensor {
        row_of(emitter, &self.columns, column)
    }

    /// Returns the array of `input`, `[rows, n]`.
    pub(super) fn token_input(&self, input: TokenInput) -> &Tensor {
        let index = TokenInput::ALL.iter().position(|known| *known == input);
        index.and_then(|index| self.token_inputs.get(index)).expect("samplers with everything have all arrays")
    }
}

/// Returns one column of `[sampled_columns, rows]`, `[rows]` i32.
fn row_of(emitter: &mut Emitter, columns: &Tensor, column: SampledColumn) -> Tensor {
    let index = sampled_columns().position(|known| known == column).expect("every column is in the list");
    emitter.row(columns, index) // [rows]
}
