//! The token history on the device, `[num_slots * max_total_tokens]` i32: the context of each slot. The decoder reads
//! from it tokens that the host does not know yet, and the sampler reads contexts, for penalties for example.
//!
//! Entry points: [`current_tokens`], [`append`], [`last_tokens`], [`token_counts`]. Padding is written to an index
//! beyond the end, which a scatter skips.

use model::graph::{DType, TokenScope};

use super::emitter::{Combine, Emitter};
use super::inputs::{RowInputs, SampledInputs, Sizes};
use super::tensor::{Tensor, Type};

/// Returns the step's token ids `[tokens]`, and the history with these tokens, except padding, written to it. If the
/// first id of a row is negative, the token in the history replaces it.
pub(super) fn current_tokens(emitter: &mut Emitter, history: &Tensor, rows: &RowInputs, sizes: &Sizes) -> [Tensor; 2] {
    let [num_rows, per_row] = [sizes.rows, sizes.tokens_per_row];
    let given = emitter.reshape(&rows.token_ids, &[num_rows, per_row]); // [rows, tokens_per_row]
    let first = emitter.slice(&given, 1, 0..1); // [rows, 1]
    let first = emitter.reshape(&first, &[num_rows]); // [rows]
    let index = history_index(emitter, &rows.slots, &rows.first_positions, sizes); // [rows]
    let sampled = emitter.gather_rows(history, &index); // [rows]
    let zero = emitter.splat(0.0, first.ty.clone()); // [rows]
    let is_sampled = emitter.compare("LT", &first, &zero); // [rows]
    let first = emitter.select(&is_sampled, &sampled, &first); // [rows]
    let first = emitter.reshape(&first, &[num_rows, 1]); // [rows, 1]
    let tokens = if per_row == 1 {
        first
    } else {
        let others = emitter.slice(&given, 1, 1..per_row); // [rows, tokens_per_row - 1]
        emitter.concatenate(&[&first, &others], 1) // [rows, tokens_per_row]
    };
    let tokens = emitter.reshape(&tokens, &[num_rows * per_row]); // [tokens]
    let slots = emitter.broadcast(&rows.slots, &[0], &[num_rows, per_row]); // [rows, tokens_per_row]
    let slots = emitter.reshape(&slots, &[num_rows * per_row]); // [tokens]
    let indices = history_index(emitter, &slots, &rows.positions, sizes); // [tokens]
    let indices = or_out_of_bounds(emitter, &rows.is_token, &indices, history); // [tokens]
    let history = emitter.scatter_rows(history, &indices, &tokens, Combine::Replace);
    [tokens, history]
}

/// Returns the history with `tokens` `[rows]` appended to the contexts of the rows that sample. A token for which the
/// history of its slot has no room is dropped.
pub(super) fn append(
    emitter: &mut Emitter,
    history: &Tensor,
    tokens: &Tensor,
    rows: &SampledInputs,
    sizes: &Sizes,
) -> Tensor {
    let index = history_index(emitter, &rows.slots, &rows.context_lens, sizes); // [rows]
    let end = emitter.splat(sizes.max_total_tokens as f64, rows.context_lens.ty.clone()); // [rows]
    let has_room = emitter.compare("LT", &rows.context_lens, &end); // [rows]
    let is_written = emitter.elementwise("and", &[&has_room, &rows.is_sampled]); // [rows]
    let index = or_out_of_bounds(emitter, &is_written, &index, history); // [rows]
    emitter.scatter_rows(history, &index, tokens, Combine::Replace)
}

/// Returns the last token of each row's context, `[rows]`; an arbitrary token for rows without context.
pub(super) fn last_tokens(emitter: &mut Emitter, history: &Tensor, rows: &SampledInputs, sizes: &Sizes) -> Tensor {
    let one = emitter.splat(1.0, rows.context_lens.ty.clone()); // [rows]
    let position = emitter.elementwise("subtract", &[&rows.context_lens, &one]); // [rows]
    let index = history_index(emitter, &rows.slots, &position, sizes); // [rows]
    emitter.gather_rows(history, &index) // [rows]
}

/// Counts how often each token occurs in the part of each row's context that `scope` names, `[rows, vocab]`, f32.
/// `table` is the history, `[slots, len]`.
pub(super) fn token_counts(
    emitter: &mut Emitter,
    table: &Tensor,
    rows: &SampledInputs,
    (scope, vocab_size): (TokenScope, usize),
) -> Tensor {
    let [num_rows, len] = [rows.slots.dims()[0], table.dims()[1]];
    let tokens = emitter.gather_rows(table, &rows.slots); // [rows, len]
    let positions = emitter.iota(1, tokens.ty.clone()); // [rows, len]
    let ends = emitter.broadcast(&rows.context_lens, &[0], tokens.dims()); // [rows, len]
    let mut is_counted = emitter.compare("LT", &positions, &ends); // [rows, len]
    if scope == TokenScope::Generated {
        let starts = emitter.broadcast(&rows.prompt_lens, &[0], tokens.dims()); // [rows, len]
        let is_generated = emitter.compare("GE", &positions, &starts); // [rows, len]
        is_counted = emitter.elementwise("and", &[&is_counted, &is_generated]); // [rows, len]
    }
    let row = emitter.iota(0, tokens.ty.clone()); // [rows, len]
    let stride = emitter.splat(vocab_size as f64, tokens.ty.clone()); // [rows, len]
    let index = emitter.elementwise("multiply", &[&row, &stride]); // [rows, len]
    let index = emitter.elementwise("add", &[&index, &tokens]); // [rows, len]
    let counts = emitter.splat(0.0, Type::new([num_rows * vocab_size], DType::F32)); // [rows * vocab]
    let index = or_out_of_bounds(emitter, &is_counted, &index, &counts); // [rows, len]
    let index = emitter.reshape(&index, &[num_rows * len]); // [rows * len]
    let ones = emitter.splat(1.0, Type::new([num_rows * len], DType::F32)); // [rows * len]
    let counts = emitter.scatter_rows(&counts, &index, &ones, Combine::Add); // [rows * vocab]
    emitter.reshape(&counts, &[num_rows, vocab_size]) // [rows, vocab]
}

/// Returns the number of tokens of each row after the step, `[rows]`.
pub(super) fn context_lens(emitter: &mut Emitter, rows: &RowInputs) -> Tensor {
    emitter.elementwise("add", &[&rows.first_positions, &rows.num_tokens]) // [rows]
}

/// Returns the indices in the history of the tokens at `positions` in `slots`.
fn history_index(emitter: &mut Emitter, slots: &Tensor, positions: &Tensor, sizes: &Sizes) -> Tensor {
    let stride = emitter.splat(sizes.max_total_tokens as f64, slots.ty.clone());
    let start = emitter.elementwise("multiply", &[slots, &stride]);
    emitter.elementwise("add", &[&start, positions]) // as slots
}

/// Returns `indices` where the condition is true, and elsewhere the first index after the end of `target`.
pub(super) fn or_out_of_bounds(emitter: &mut Emitter, condition: &Tensor, indices: &Tensor, target: &Tensor) -> Tensor {
    let out_of_bounds = emitter.splat(target.dims()[0] as f64, indices.ty.clone());
    emitter.select(condition, indices, &out_of_bounds) // as indices
}
