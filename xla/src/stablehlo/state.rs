//! The arrays that stay on the device between steps.
//!
//! Entry points: [`state_type`], [`rows_of_slots`], [`write_to_slots`]. Each state of a model is one array. A program
//! that changes a state takes over its memory and returns it. A state of slots has one entry per slot. The operations
//! of a graph see only the entries of the step's rows, which are read before the first operation and written after the
//! last.

use backend::{BLOCK_SIZE, StateLayout};
use model::graph::{DType, Extent, Numbers, StateSpec};

use super::emitter::{Combine, Emitter};
use super::history::or_out_of_bounds;
use super::inputs::RowInputs;
use super::tensor::{Tensor, Type};

/// Returns the type of a state's array: `[num_blocks, block_size, n]` if it has n elements for each token,
/// `[num_slots, ..]` if it has an entry for each slot, and `[num_slots * max_total_tokens, ..]` if it has an entry for
/// each position of a slot. The elements of the KV cache have the type `cache_dtype`.
pub(crate) fn state_type(spec: &StateSpec, layout: StateLayout, cache_dtype: DType) -> Type {
    let StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens: _ } = layout;
    let dtype = match spec.numbers {
        Numbers::Cache => cache_dtype,
        Numbers::Exact(dtype) => dtype,
    };
    let dims = match spec.extent {
        Extent::Token => vec![num_blocks, BLOCK_SIZE, spec.num_elements()],
        Extent::Slot => [&[num_slots], spec.shape.as_slice()].concat(),
        Extent::Position => [&[num_slots * max_total_tokens], spec.shape.as_slice()].concat(),
    };
    Type::new(dims, dtype)
}

/// Returns the entries of a state `[num_slots, ..]` that belong to the rows, `[rows, ..]`. The entries are zeros for
/// rows whose first token is in this step.
pub(super) fn rows_of_slots(emitter: &mut Emitter, state: &Tensor, rows: &RowInputs) -> Tensor {
    let kept = emitter.gather_rows(state, &rows.slots); // [rows, ..]
    let zero = emitter.splat(0.0, rows.first_positions.ty.clone()); // [rows]
    let is_new = emitter.compare("EQ", &rows.first_positions, &zero); // [rows]
    let is_new = emitter.broadcast(&is_new, &[0], kept.dims()); // [rows, ..]
    let zeros = emitter.splat(0.0, kept.ty.clone()); // [rows, ..]
    emitter.select(&is_new, &zeros, &kept) // [rows, ..]
}

/// Returns the state with `kept` `[rows, ..]` in the slots of the rows. Padding rows write nothing.
pub(super) fn write_to_slots(emitter: &mut Emitter, state: &Tensor, kept: &Tensor, rows: &RowInputs) -> Tensor {
    let zero = emitter.splat(0.0, rows.num_tokens.ty.clone()); // [rows]
    let has_tokens = emitter.compare("GT", &rows.num_tokens, &zero); // [rows]
    let slots = or_out_of_bounds(emitter, &has_tokens, &rows.slots, state); // [rows]
    emitter.scatter_rows(state, &slots, kept, Combine::Replace)
}
