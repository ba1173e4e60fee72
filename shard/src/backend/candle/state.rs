//! What lives between steps: the layers' KV caches, the token history, and the tables of rotary embeddings.
//!
//! Door: [`State`]. Memory comes zeroed from the system, page by page when it is first touched.

use std::sync::{Arc, Mutex};

use kernels::rotary::RotaryTable;

use crate::backend::history::TokenHistory;
use crate::backend::{BLOCK_SIZE, BackendError, StateLayout};
use crate::graph::{AttentionSpec, Graph, Op, Pairing, RotarySpec};

/// State of all rows.
#[derive(Debug)]
pub(super) struct State {
    /// One per layer; an operation locks its layer, and nothing else does.
    pub(super) layers: Vec<Mutex<LayerCache>>,
    pub(super) history: TokenHistory,
    rotary_tables: Vec<(Arc<RotarySpec>, RotaryTable)>,
}

/// Keys and values of one layer, each `[num_blocks, kv_heads, block_size, head_dim]`.
#[derive(Debug)]
pub(super) struct LayerCache {
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
}

/// What one layer keeps per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KvShape {
    /// kv_heads · head_dim
    width: usize,
}

impl KvShape {
    /// The caches that `graph` attends to, by layer.
    pub(super) fn of_layers(graph: &Graph) -> Vec<Self> {
        let mut shapes = Vec::new();
        for node in graph.nodes() {
            if let Op::PagedAttention(AttentionSpec { layer, .. }) = node.op {
                let shape = Self { width: graph.node(node.operands[1]).shape.fixed_len() };
                shapes.resize(shapes.len().max(layer + 1), shape);
                shapes[layer] = shape;
            }
        }
        shapes
    }

    /// Keys and values of one token.
    pub(super) fn bytes_per_token(&self) -> u64 {
        (2 * self.width * size_of::<f32>()) as u64
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
            let len = num_blocks * BLOCK_SIZE * shape.width;
            layers.push(Mutex::new(LayerCache { k: zeros(len)?, v: zeros(len)? }));
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

fn zeros(len: usize) -> Result<Vec<f32>, BackendError> {
    // Asks first, because a refusal inside of `vec!` ends the process; the zeroes of `vec!` cost nothing until touched.
    let mut probe: Vec<f32> = Vec::new();
    let bytes = (len * size_of::<f32>()) as u64;
    probe.try_reserve_exact(len).map_err(|source| BackendError::Allocate { bytes, source })?;
    drop(probe);
    Ok(vec![0.0; len])
}
