//! The arrays that stay on the device between steps.
//!
//! Door: [`state_type`]. Each state of a model is one array; a step's program takes it over and gives it back.

use backend::{BLOCK_SIZE, StateLayout};
use model::graph::{DType, Extent, Numbers, StateSpec};

use super::tensor::Type;

/// Type of a state's array: `[num_blocks, block_size, n]` where it has n elements for each token, `[num_slots, ..]`, or
/// `[num_slots * max_total_tokens, ..]`. The KV cache holds `cache_dtype`.
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
