//! What a model keeps between steps, as data: backends allocate it, lay it out and count its bytes from the list.
//!
//! Doors: [`StateSpec`], which says how to add one, [`Graph::states`](super::Graph::states), and [`StateBytes`], the
//! one sum of it all. Operations name what they read and write by [`StateId`].

use super::DType;

/// Name of the token history.
pub const TOKEN_HISTORY: &str = "token_history";

/// Something that a model keeps between steps. Its memory is zero at first.
///
/// To add one, declare it where the layer is built, with [`Graph::state`](super::Graph::state), and give its id to
/// the operation that reads and writes it. Backends allocate it from the list and count its bytes. An operation of
/// the CPU finds it in `cpu/src/state.rs`, one that is compiled in `xla/src/stablehlo/state.rs`.
/// `docs/decisions/states.md` says what each extent means for sequences that share a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StateSpec {
    /// Its name: no other state of the model has it.
    pub name: String,
    /// The units that it has: a token, a slot, or a position of a slot.
    pub extent: Extent,
    /// Shape of each unit on one rank; all ranks have the same.
    pub shape: Vec<usize>,
    /// Type of its numbers.
    pub numbers: Numbers,
    /// Most tokens that an operation reads back, where that is bounded.
    pub window: Option<usize>,
}

/// The unit of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// A token in the KV cache, which holds them block by block.
    Token,
    /// A slot: what was made of all tokens of its row so far. A row finds zeros at its first token.
    Slot,
    /// A position of a slot, up to the longest row.
    Position,
}

/// The type of a state's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// The type of the KV cache, which the user or the device chooses. A vector along the last dimension is rounded as one.
    Cache,
    /// A type of its own.
    Exact(DType),
}

/// A state of one graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateId(pub(super) usize);

/// Bytes that one rank keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// Of a token in the KV cache.
    pub per_token: u64,
    /// Of a slot, beside its positions.
    pub per_slot: u64,
    /// Of a position of a slot.
    pub per_position: u64,
}

impl StateId {
    /// Its place in [`Graph::states`](super::Graph::states).
    pub fn index(self) -> usize {
        self.0
    }
}

impl StateSpec {
    /// An array of this shape for each token in the KV cache; attention reads at most the last `window` tokens.
    pub fn of_tokens(name: impl Into<String>, shape: &[usize], window: Option<usize>) -> Self {
        Self { name: name.into(), extent: Extent::Token, shape: shape.to_vec(), numbers: Numbers::Cache, window }
    }

    /// An array of this shape for each slot, in single precision.
    pub fn of_slots(name: impl Into<String>, shape: &[usize]) -> Self {
        let numbers = Numbers::Exact(DType::F32);
        Self { name: name.into(), extent: Extent::Slot, shape: shape.to_vec(), numbers, window: None }
    }

    /// The token history: the id of every token of every row.
    pub fn token_history() -> Self {
        Self {
            name: TOKEN_HISTORY.to_owned(),
            extent: Extent::Position,
            shape: Vec::new(),
            numbers: Numbers::Exact(DType::I32),
            window: None,
        }
    }

    /// Elements of one unit.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of one unit, where the KV cache keeps a vector of n numbers in `cache_vector_bytes(n)`.
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
    /// The sum of `states`, where the KV cache keeps a vector of n numbers in `cache_vector_bytes(n)`.
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

    /// Bytes of all slots, whose rows have at most `max_total_tokens`.
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
        // Integers of a byte with a factor of four bytes for each vector.
        let bytes = StateBytes::of(&states, |len| len as u64 + 4);
        assert_eq!(bytes, StateBytes { per_token: 2 * 12 + 2 * 8, per_slot: 60, per_position: 4 });
        assert_eq!(bytes.of_slots(3, 100), 3 * (60 + 400));
    }
}
