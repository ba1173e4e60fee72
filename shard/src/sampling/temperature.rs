//! Temperature: low sharpens the distribution, high flattens it.
//!
//! Door: [`apply`]. Greedy rows never come here.

use crate::graph::{Binary, Graph, GraphError, Input, SamplingInput, Value};

/// A score becomes s / temperature.
pub(super) fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let temperature = graph.input(Input::Sampling(SamplingInput::Temperature)); // [rows]
    graph.binary(Binary::Divide, scores, temperature) // [rows, vocab]
}
