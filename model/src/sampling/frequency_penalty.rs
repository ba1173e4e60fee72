//! Frequency penalty, as OpenAI defines it: a token gets less likely each time it is generated.
//!
//! Door: [`apply`]. The prompt does not count; a negative penalty makes repeated tokens likelier.

use crate::graph::{Binary, Graph, GraphError, Input, SamplingInput, TokenScope, Value};

/// A score becomes s − penalty · (occurrences among the generated tokens).
pub(super) fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let penalty = graph.input(Input::Sampling(SamplingInput::FrequencyPenalty)); // [rows]
    let counts = super::token_counts(graph, scores, TokenScope::Generated); // [rows, vocab]
    let penalties = graph.binary(Binary::Multiply, counts, penalty)?; // [rows, vocab]
    graph.binary(Binary::Subtract, scores, penalties) // [rows, vocab]
}
