//! What lives between steps: the layers' KV caches, the token history, and the tables of rotary embeddings.
//!
//! Door: [`State`]. Memory comes zeroed from the system, page by page when it is first touched.

use std::sync::{Arc, Mutex};

use backend::TokenHistory;
use backend::{BLOCK_SIZE, BackendError, StateLayout};
use kernels::attention::{KvCache, KvType};
use kernels::rotary::RotaryTable;
use model::graph::{AttentionSpec, Graph, Op, Pairing, RotarySpec};

/// State of all rows.
#[derive(Debug)]
pub(super) struct State {
    /// Keys and values, one cache per layer; an operation locks its layer, and nothing else does.
    pub(super) layers: Vec<Mutex<KvCache>>,
    pub(super) history: TokenHistory,
    rotary_tables: Vec<(Arc<RotarySpec>, RotaryTable)>,
}

/// What one layer keeps per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KvShape {
    num_kv_heads: usize,
    head_dim: usize,
    kv_type: KvType,
}

impl KvShape {
    /// The caches that `graph` attends to, by layer.
    pub(super) fn of_layers(graph: &Graph, kv_type: KvType) -> Vec<Self> {
        let mut shapes = Vec::new();
        for node in graph.nodes() {
            if let Op::PagedAttention(AttentionSpec { layer, .. }) = node.op {
                let keys = &graph.node(node.operands[1]).shape; // [tokens, kv_heads, head_dim]
                let head_dim = keys.last_size().expect("a head has a fixed size");
                let shape = Self { num_kv_heads: keys.fixed_len() / head_dim, head_dim, kv_type };
                shapes.resize(shapes.len().max(layer + 1), shape);
                shapes[layer] = shape;
            }
        }
        shapes
    }

    /// Keys and values of one token.
    pub(super) fn bytes_per_token(&self) -> u64 {
        (2 * self.num_kv_heads * self.kv_type.bytes_per_vector(self.head_dim)) as u64
    }

    fn allocate(&self, num_blocks: usize) -> Result<KvCache, BackendError> {
        let Self { num_kv_heads, head_dim, kv_type } = *self;
        let bytes = (num_blocks * BLOCK_SIZE) as u64 * self.bytes_per_token();
        KvCache::zeros(kv_type, [num_blocks, num_kv_heads, BLOCK_SIZE, head_dim])
            .map_err(|source| BackendError::Allocate { bytes, source })
    }
}

impl State {
    /// Empty state for a model whose decoder is `graph`.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub(super) fn allocate(kv_shapes: &[KvShape], graph: &Graph, layout: StateLayout) -> Result<Self, BackendError> {
        let StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens: _ } = layout;
        let mut layers = Vec::with_capacity(kv_shapes.len());
        for shape in kv_shapes {
            layers.push(Mutex::new(shape.allocate(num_blocks)?));
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
        Ok(Self { layers, history: TokenHistory::new(num_slots, max_total_tokens), rotary_tables })
    }

    /// Cosines and sines of `spec`.
    pub(super) fn rotary_table(&self, spec: &Arc<RotarySpec>) -> &RotaryTable {
        let found = self.rotary_tables.iter().find(|(known, _)| Arc::ptr_eq(known, spec));
        &found.expect("the decoder's tables were all made").1
    }
}
