//! The states that a model keeps between steps, as data: backends allocate states, lay them out and count their bytes
//! from a graph's list of states.
//!
//! Entry points: [`StateSpec`], whose comment says how to add one, [`Graph::states`](super::Graph::states), and
//! [`StateBytes`], the bytes of all states. Operations name the states that they read and write by [`StateId`], except
//! the token history.

use super::DType;

/// Name of the token history.
pub const TOKEN_HISTORY: &str = "token_history";

/// An array that a model keeps between steps. Its memory is zero at first.
///
/// To add a state, declare it in the file of the layer, with [`Graph::state`](super::Graph::state), and pass its id to
/// the operation that reads and writes it. XLA allocates each state in the graph's list and counts its bytes. The CPU
/// does so for slot states, as f32, and for the keys and values of paged attention. An operation of the CPU finds the
/// state through `cpu/src/state.rs`, a compiled operation through `xla/src/stablehlo/state.rs`.
/// `docs/decisions/states.md` explains the extents and what they mean for sequences that share a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StateSpec {
    /// The name, unique in the model.
    pub name: String,
    /// The unit for which the state has an array: a token, a slot, or a position of a slot.
    pub extent: Extent,
    /// The shape of the array of one unit on one rank. All ranks have the same shape.
    pub shape: Vec<usize>,
    /// The type of the state's elements.
    pub numbers: Numbers,
    /// The maximum number of tokens that an operation reads back; `None` if there is no limit.
    pub window: Option<usize>,
}

/// The unit of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// A token in the KV cache, which keeps tokens in blocks.
    Token,
    /// A slot: one array computed from all tokens of its row so far. A row finds zeros at its first token.
    Slot,
    /// A position of a slot, up to the longest row.
    Position,
}

/// The type of a state's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// The type of the KV cache, which the user or the device chooses. The type may have a scale for each vector along
    /// the last dimension.
    Cache,
    /// A fixed type.
    Exact(DType),
}

/// The index of a state in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateId(pub(super) usize);

/// Bytes that one rank keeps, by unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// Bytes of a token in the KV cache.
    pub per_token: u64,
    /// Bytes of a slot, without its positions.
    pub per_slot: u64,
    /// Bytes of a position of a slot.
    pub per_position: u64,
}

impl StateId {
    /// Returns the index in [`Graph::states`](super::Graph::states).
    pub fn index(self) -> usize {
        self.0
    }
}

impl StateSpec {
    /// Returns a state with an array of this shape for each token in the KV cache. Attention reads at most the last
    /// `window` tokens.
    pub fn of_tokens(name: impl Into<String>, shape: &[usize], window: Option<usize>) -> Self {
        Self { name: name.into(), extent: Extent::Token, shape: shape.to_vec(), numbers: Numbers::Cache, window }
    }

    /// Returns a state with an array of this shape for each slot, in f32.
    pub fn of_slots(name: impl Into<String>, shape: &[usize]) -> Self {
        let numbers = Numbers::Exact(DType::F32);
        Self { name: name.into(), extent: Extent::Slot, shape: shape.to_vec(), numbers, window: None }
    }

    /// Returns the token history: the id of every token of every row.
    pub fn token_history() -> Self {
        Self {
            name: TOKEN_HISTORY.to_owned(),
            extent: Extent::Position,
            shape: Vec::new(),
            numbers: Numbers::Exact(DType::I32),
            window: None,
        }
    }

    /// The number of elements of one unit.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the bytes of one unit. `cache_vector_bytes(n)` is the size of a vector of n elements in the KV cache.
    pub fn bytes(&self, cache_vector_bytes: impl Fn(usize) -> u64) -> u64 {
        match self.numbers {
            Numbers::Exact(dtype) => self.num_elements() as u64 * dtype.size_bytes(),
            Numbers::Cache => {
                let vector_len = self.shape.last().copied().unwrap_or(1);
                (self.num_elements() / vector_len.max(1)) as u64 * cache_vector_bytes(vector_len)
            }
        }
    }
}

impl StateBytes {
    /// Returns the bytes of all `states`, summed by unit. `cache_vector_bytes(n)` is the size of a vector of n elements
    /// in the KV cache.
    pub fn of<'a>(states: impl IntoIterator<Item = &'a StateSpec>, cache_vector_bytes: impl Fn(usize) -> u64) -> Self {
        let mut sum = Self::default();
        for state in states {
            let bytes = state.bytes(&cache_vector_bytes);
            match state.extent {
                Extent::Token => sum.per_token += bytes,
                Extent::Slot => sum.per_slot += bytes,
                Extent::Position => sum.per_position += bytes,
            }
        }
        sum
    }

    /// Returns the bytes of `num_slots` slots, whose rows have at most `max_total_tokens`.
    pub fn of_slots(&self, num_slots: usize, max_total_tokens: usize) -> u64 {
        let per_slot = self.per_slot.saturating_add(self.per_position.saturating_mul(max_total_tokens as u64));
        per_slot.saturating_mul(num_slots as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_summed_by_unit() {
        let keys = |name, shape: &[usize]| StateSpec::of_tokens(name, shape, None);
        let sums = StateSpec::of_slots("sums", &[3, 5]);
        let states = [keys("keys", &[2, 8]), keys("values", &[2, 4]), sums, StateSpec::token_history()];
        // In this test, a vector of n elements in the cache has n bytes and a scale of four bytes.
        let bytes = StateBytes::of(&states, |len| len as u64 + 4);
        assert_eq!(bytes, StateBytes { per_token: 2 * 12 + 2 * 8, per_slot: 60, per_position: 4 });
        assert_eq!(bytes.of_slots(3, 100), 3 * (60 + 400));
    }
}
