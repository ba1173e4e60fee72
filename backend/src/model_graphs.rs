//! The graphs of a model, which a backend executes.

use std::sync::Arc;

use model::graph::{self, DType, Dim, Extent, Graph, GraphError, Shape, StateSpec, WeightSpec};
use model::models::Model;
use numbers::Rounding;

/// The two graphs of a model, in the order in which they run. Rows of the first one's result are the argument of the
/// second.
#[derive(Debug, Clone)]
pub struct ModelGraphs {
    /// From the tokens of a step to hidden states `[tokens, hidden]`.
    pub decoder: Arc<Graph>,
    /// From hidden states `[rows, hidden]` (argument 0) to logits `[rows, vocab]`.
    pub logits: Arc<Graph>,
}

impl ModelGraphs {
    /// Returns the graphs of `model`.
    ///
    /// # Errors
    /// When the head does not fit the decoder.
    pub fn of(model: &Model) -> Result<Self, GraphError> {
        let hidden_shape = model.decoder.node(model.decoder.outputs()[0]).shape.clone(); // [tokens, hidden]
        let hidden_shape = Shape::new([Dim::Rows, hidden_shape.dims()[1]]); // [rows, hidden]
        let mut logits = Graph::default();
        let hidden = logits.argument(0, hidden_shape, DType::F32); // [rows, hidden]
        let output = model.head.apply(&mut logits, hidden)?; // [rows, vocab]
        Ok(Self { decoder: model.decoder.clone(), logits: logits.finish(&[output]) })
    }

    /// Returns the same graphs with quantized matrices; see [`graph::quantized`].
    pub fn quantized(&self, rounding: Rounding) -> Self {
        let Self { decoder, logits } = self;
        let [decoder, logits] = graph::quantized([decoder, logits], rounding);
        Self { decoder, logits }
    }

    /// Returns every weight once.
    pub fn weights(&self) -> Vec<&WeightSpec> {
        let mut weights: Vec<&WeightSpec> = self.decoder.weights().chain(self.logits.weights()).collect();
        let mut names = std::collections::HashSet::new();
        weights.retain(|spec| names.insert(&spec.name));
        weights
    }

    /// Returns every state once: first the states of the KV cache, then the states of slots and positions.
    pub fn states(&self) -> Vec<&StateSpec> {
        let mut states: Vec<&StateSpec> = self.decoder.states().iter().collect();
        states.sort_by_key(|state| match state.extent {
            Extent::Token => 0,
            Extent::Slot | Extent::Position => 1,
        });
        states
    }

    /// True if a row can begin after a prefix that another row has read. False if the model has a state of slots,
    /// because such a state is computed by reading all tokens of the row.
    pub fn can_skip_prefix(&self) -> bool {
        self.decoder.states().iter().all(|state| match state.extent {
            Extent::Token | Extent::Position => true,
            Extent::Slot => false,
        })
    }

    /// Returns the maximum number of tokens that a token attends to, itself included; `None` if a layer has no limit or
    /// the model has no KV cache.
    pub fn window(&self) -> Option<usize> {
        let windows = self.decoder.states().iter().filter(|state| state.extent == Extent::Token);
        let windows: Option<Vec<usize>> = windows.map(|state| state.window).collect();
        windows?.into_iter().max()
    }

    /// Returns the number of tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.logits.node(self.logits.outputs()[0]).shape.fixed_len()
    }

    /// Returns the bytes of one rank's weights.
    pub fn weights_bytes(&self) -> u64 {
        self.weights().into_iter().map(WeightSpec::local_bytes).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graphs(states: &[StateSpec]) -> ModelGraphs {
        let mut decoder = Graph::default();
        states.iter().for_each(|state| _ = decoder.state(state));
        ModelGraphs { decoder: decoder.finish(&[]), logits: Graph::default().finish(&[]) }
    }

    #[test]
    fn the_window_of_a_model_is_the_largest_where_all_states_of_tokens_have_one() {
        let keys = |name, window| StateSpec::of_tokens(name, &[2, 8], window);
        let beside = [StateSpec::token_history(), StateSpec::of_slots("sums", &[8])];
        let window = |states: &[StateSpec]| graphs(&[&beside, states].concat()).window();
        assert_eq!(window(&[keys("a", Some(5)), keys("b", Some(9))]), Some(9));
        assert_eq!(window(&[keys("a", Some(5)), keys("b", None)]), None);
        assert_eq!(window(&[]), None);
    }

    #[test]
    fn a_state_of_slots_is_made_by_reading_every_token() {
        let keys = StateSpec::of_tokens("keys", &[2, 8], Some(64));
        let attention = [StateSpec::token_history(), keys.clone()];
        assert!(graphs(&attention).can_skip_prefix());
        let sums = StateSpec::of_slots("sums", &[8]);
        let mixed = graphs(&[StateSpec::token_history(), sums.clone(), keys.clone()]);
        assert!(!mixed.can_skip_prefix());
        assert_eq!(mixed.states(), [&keys, &StateSpec::token_history(), &sums]);
    }
}
