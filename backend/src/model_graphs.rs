//! What a backend gets of a model: its graphs.

use std::sync::Arc;

use model::graph::{self, Extent, Graph, Rounding, StateSpec, WeightSpec};

/// The graphs of a model, in the order in which their results are handed on.
#[derive(Debug, Clone)]
pub struct ModelGraphs {
    /// Step → hidden states `[tokens, hidden]`.
    pub decoder: Arc<Graph>,
    /// Hidden states `[rows, hidden]` (argument 0) → logits `[rows, vocab]`.
    pub logits: Arc<Graph>,
}

impl ModelGraphs {
    /// The same, with rounded matrices.
    pub fn quantized(&self, rounding: Rounding) -> Self {
        let Self { decoder, logits } = self;
        let [decoder, logits] = graph::quantized([decoder, logits], rounding);
        Self { decoder, logits }
    }

    /// Every weight once.
    pub fn weights(&self) -> Vec<&WeightSpec> {
        let mut weights: Vec<&WeightSpec> = self.decoder.weights().chain(self.logits.weights()).collect();
        let mut names = std::collections::HashSet::new();
        weights.retain(|spec| names.insert(&spec.name));
        weights
    }

    /// Every state once: first those of the KV cache, then those of slots.
    pub fn states(&self) -> Vec<&StateSpec> {
        let mut states: Vec<&StateSpec> = self.decoder.states().iter().collect();
        states.sort_by_key(|state| match state.extent {
            Extent::Token => 0,
            Extent::Slot | Extent::Position => 1,
        });
        states
    }

    /// Tokens of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.logits.node(self.logits.outputs()[0]).shape.fixed_len()
    }

    /// Bytes of one rank's weights.
    pub fn weights_bytes(&self) -> u64 {
        self.weights().into_iter().map(WeightSpec::local_bytes).fold(0, u64::saturating_add)
    }
}
