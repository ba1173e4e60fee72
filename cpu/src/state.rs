//! The states of a model between steps, and the tables of rotary embeddings.
//!
//! Door: [`State`]. Memory comes zeroed from the system, page by page when it is first touched.

use std::sync::{Arc, Mutex, MutexGuard};

use backend::TokenHistory;
use backend::{BLOCK_SIZE, BackendError, StateLayout};
use kernels::attention::{KvCache, KvType};
use kernels::rotary::RotaryTable;
use model::graph::{AttentionSpec, Graph, Op, Pairing, RotarySpec, StateBytes, StateId, StateSpec};

/// State of all rows.
#[derive(Debug)]
pub(super) struct State {
    /// Keys and values by the place of the keys among the decoder's states; an operation locks them, and nothing else does.
    caches: Vec<Option<Mutex<KvCache>>>,
    pub(super) history: TokenHistory,
    rotary_tables: Vec<(Arc<RotarySpec>, RotaryTable)>,
}

impl State {
    /// Empty state for a model whose decoder is `graph`; keys and values are kept as `kv_type`.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub(super) fn allocate(graph: &Graph, kv_type: KvType, layout: StateLayout) -> Result<Self, BackendError> {
        let StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens: _ } = layout;
        let mut caches: Vec<_> = graph.states().iter().map(|_| None).collect();
        for node in graph.nodes() {
            if let Op::PagedAttention(AttentionSpec { keys, values, .. }) = node.op
                && caches[keys.index()].is_none()
            {
                let specs = [keys, values].map(|id| graph.state_spec(id));
                caches[keys.index()] = Some(Mutex::new(allocate(specs, kv_type, num_blocks)?));
            }
        }
        let mut rotary_tables: Vec<(Arc<RotarySpec>, RotaryTable)> = Vec::new();
        for node in graph.nodes() {
            if let Op::Rotary(spec) = &node.op
                && !rotary_tables.iter().any(|(known, _)| Arc::ptr_eq(known, spec))
            {
                let pairing = match spec.pairing {
                    Pairing::Halves => kernels::rotary::Pairing::Halves,
                    Pairing::Neighbours => kernels::rotary::Pairing::Neighbours,
                };
                let table = RotaryTable::new(&spec.frequencies, max_total_tokens, spec.amplitude, pairing);
                rotary_tables.push((Arc::clone(spec), table));
            }
        }
        Ok(Self { caches, history: TokenHistory::new(num_slots, max_total_tokens), rotary_tables })
    }

    /// The cache of these keys, and of the values beside them.
    pub(super) fn cache(&self, keys: StateId) -> MutexGuard<'_, KvCache> {
        let cache = self.caches[keys.index()].as_ref().expect("the decoder's caches were all made");
        cache.lock().expect("no operation panics while it holds a cache")
    }

    /// Cosines and sines of `spec`.
    pub(super) fn rotary_table(&self, spec: &Arc<RotarySpec>) -> &RotaryTable {
        let found = self.rotary_tables.iter().find(|(known, _)| Arc::ptr_eq(known, spec));
        &found.expect("the decoder's tables were all made").1
    }
}

/// A cache of keys and values, which have one shape.
fn allocate([keys, values]: [&StateSpec; 2], kv_type: KvType, num_blocks: usize) -> Result<KvCache, BackendError> {
    let &[num_kv_heads, head_dim] = keys.shape.as_slice() else { unreachable!("the graph checks the shape of keys") };
    let bytes_per_token = StateBytes::of([keys, values], |len| kv_type.bytes_per_vector(len) as u64).per_token;
    let bytes = (num_blocks * BLOCK_SIZE) as u64 * bytes_per_token;
    KvCache::zeros(kv_type, [num_blocks, num_kv_heads, BLOCK_SIZE, head_dim])
        .map_err(|source| BackendError::Allocate { bytes, source })
}
