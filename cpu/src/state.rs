//! The states of a model between steps, and the tables of rotary embeddings.
//!
//! Entry point: [`State`]. For the states, the system provides zeroed memory, and each page only when it is first
//! touched.

use std::sync::{Arc, Mutex, MutexGuard};

use backend::{BLOCK_SIZE, BackendError, Batch, StateLayout, TokenHistory};
use kernels::attention::{KvCache, KvType};
use kernels::rotary::RotaryTable;
use model::graph::{AttentionSpec, Extent, Graph, Op, Pairing, RotarySpec, StateBytes, StateId, StateSpec, ValuesIn};

/// One state of slots: `len` values for each slot.
#[derive(Debug)]
pub(super) struct SlotState {
    /// `[num_slots, len]`
    numbers: Vec<f32>,
    len: usize,
}

/// The states of all rows.
#[derive(Debug)]
pub(super) struct State {
    /// Caches of keys and values, at the index that the keys have among the decoder's states. Only one operation at a
    /// time locks them.
    caches: Vec<Option<Mutex<KvCache>>>,
    /// States of slots, at their index among the decoder's states. Only one operation at a time locks them.
    slots: Vec<Option<Mutex<SlotState>>>,
    pub(super) history: TokenHistory,
    rotary_tables: Vec<(Arc<RotarySpec>, RotaryTable)>,
}

impl State {
    /// Returns zeroed states for a model whose decoder is `graph`; keys and values have the type `kv_type`.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub(super) fn allocate(graph: &Graph, kv_type: KvType, layout: StateLayout) -> Result<Self, BackendError> {
        let StateLayout { num_slots, num_blocks, max_total_tokens, max_batch_prefill_tokens: _ } = layout;
        let mut caches: Vec<_> = graph.states().iter().map(|_| None).collect();
        for node in graph.nodes() {
            if let Op::PagedAttention(spec) = &node.op
                && caches[spec.keys.index()].is_none()
            {
                caches[spec.keys.index()] = Some(Mutex::new(allocate((graph, spec), kv_type, num_blocks)?));
            }
        }
        let slots = |spec: &StateSpec| match spec.extent {
            Extent::Slot => Some(Mutex::new(SlotState::zeros(num_slots, spec.num_elements()))),
            Extent::Token | Extent::Position => None,
        };
        let slots = graph.states().iter().map(slots).collect();
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
        Ok(Self { caches, slots, history: TokenHistory::new(num_slots, max_total_tokens), rotary_tables })
    }

    /// Begins a step: zeroes the states of the slots whose rows have their first token in this step.
    pub(super) fn begin(&self, batch: &Batch) {
        for state in self.slots.iter().flatten() {
            let mut state = lock(state);
            let new = batch.rows.iter().filter(|row| row.num_tokens == row.context_len);
            new.for_each(|row| state.of_slot(row.slot).fill(0.0));
        }
    }

    /// Returns a state of slots.
    pub(super) fn slots(&self, id: StateId) -> MutexGuard<'_, SlotState> {
        lock(self.slots[id.index()].as_ref().expect("the graph checks that it is a state of slots"))
    }

    /// Returns the cache of the keys `keys` and of their values.
    pub(super) fn cache(&self, keys: StateId) -> MutexGuard<'_, KvCache> {
        lock(self.caches[keys.index()].as_ref().expect("the decoder's caches were all made"))
    }

    /// Returns the cosines and sines of `spec`.
    pub(super) fn rotary_table(&self, spec: &Arc<RotarySpec>) -> &RotaryTable {
        let found = self.rotary_tables.iter().find(|(known, _)| Arc::ptr_eq(known, spec));
        &found.expect("the decoder's tables were all made").1
    }
}

impl SlotState {
    /// Returns a state of zeros, with `len` values for each slot.
    fn zeros(num_slots: usize, len: usize) -> Self {
        Self { numbers: vec![0.0; num_slots * len], len }
    }

    /// Returns the values of one slot, `[len]`.
    pub(super) fn of_slot(&mut self, slot: usize) -> &mut [f32] {
        &mut self.numbers[slot * self.len..][..self.len]
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().expect("no operation panics while it holds a state")
}

/// Allocates the cache of a layer of `graph`.
fn allocate(
    (graph, attention): (&Graph, &AttentionSpec),
    kv_type: KvType,
    num_blocks: usize,
) -> Result<KvCache, BackendError> {
    let dims = |id: StateId| match *graph.state_spec(id).shape {
        [num_heads, dim] => [num_heads, dim],
        _ => unreachable!("the graph checks the shapes of keys and values"),
    };
    let [num_kv_heads, head_dim] = dims(attention.keys);
    let places = [num_blocks, num_kv_heads, BLOCK_SIZE];
    let cache = match attention.values {
        ValuesIn::State(values) => KvCache::zeros(kv_type, places, [head_dim, dims(values)[1]]),
        ValuesIn::Keys { value_dim } => KvCache::latent(kv_type, places, [head_dim, value_dim]),
    };
    let specs = attention.states().map(|id| graph.state_spec(id));
    let bytes_per_token = StateBytes::of(specs, |len| kv_type.bytes_per_vector(len) as u64).per_token;
    let bytes = (num_blocks * BLOCK_SIZE) as u64 * bytes_per_token;
    cache.map_err(|source| BackendError::Allocate { bytes, source })
}

#[cfg(test)]
mod tests {
    use model::graph::{DType, Dim, Shape, Value};

    use super::*;

    const LAYOUT: StateLayout =
        StateLayout { num_slots: 3, num_blocks: 2, max_total_tokens: 32, max_batch_prefill_tokens: 32 };

    fn argument(graph: &mut Graph, index: usize, sizes: &[usize]) -> Value {
        let dims = [Dim::Tokens].into_iter().chain(sizes.iter().copied().map(Dim::Fixed));
        graph.argument(index, Shape::new(dims.collect::<Vec<_>>()), DType::F32)
    }

    #[test]
    fn layers_of_one_state_share_its_memory() {
        let mut graph = Graph::default();
        let [q, other_q, k, v] = [(0, [4, 8]), (1, [4, 8]), (2, [2, 8]), (3, [2, 4])]
            .map(|(index, sizes)| argument(&mut graph, index, &sizes));
        let [keys, values] = [("keys", [2, 8]), ("values", [2, 4])]
            .map(|(name, shape)| graph.state(&StateSpec::of_tokens(name, &shape, None)));
        let spec =
            AttentionSpec { keys, values: values.into(), scale: 1.0, window: None, soft_cap: None, slopes: None };
        let outputs = [q, other_q].map(|q| graph.paged_attention([q, k, v], None, spec).unwrap());
        let state = State::allocate(&graph.finish(&outputs), KvType::F32, LAYOUT).unwrap();
        let bytes: usize = state.caches.iter().flatten().map(|cache| lock(cache).size_bytes()).sum();
        assert_eq!(bytes, 2 * BLOCK_SIZE * 2 * (8 + 4) * 4);
    }

    #[test]
    fn rows_that_begin_find_zeros_and_others_what_was_there() {
        let mut graph = Graph::default();
        let [first, second] =
            [("first", 2), ("second", 3)].map(|(name, len)| graph.state(&StateSpec::of_slots(name, &[len])));
        let state = State::allocate(&graph.finish(&[]), KvType::F32, LAYOUT).unwrap();
        for id in [first, second] {
            (0..3).for_each(|slot| state.slots(id).of_slot(slot).fill(1.0 + slot as f32));
        }
        let mut batch = Batch::default();
        batch.push_row(2, 0, &[5, 6], &[0]);
        batch.push_row(0, 7, &[5], &[1]);
        state.begin(&batch);
        for (id, len) in [(first, 2), (second, 3)] {
            let kept = [0, 1, 2].map(|slot| state.slots(id).of_slot(slot).to_vec());
            assert_eq!(kept, [1.0, 2.0, 0.0].map(|number: f32| vec![number; len]));
        }
    }
}
