//! Top-k: only the k best tokens stay, and those that tie with the k-th.
//!
//! Door: [`apply`]. A k of 0 keeps all, and so does one beyond the vocabulary.

use crate::graph::{Graph, GraphError, Input, SamplingInput, Value};

/// Scores below the k-th best become minus infinity.
pub(super) fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let k = graph.input(Input::Sampling(SamplingInput::TopK)); // [rows]
    let threshold = graph.kth_largest(scores, k)?; // [rows]
    let is_dropped = graph.less(scores, threshold)?; // [rows, vocab]
    let never = graph.constant(f32::NEG_INFINITY); // []
    graph.select(is_dropped, never, scores) // [rows, vocab]
}
