//! Presence penalty, as OpenAI defines it: a token that was generated gets less likely, however often it was.
//!
//! Door: [`apply`]. The prompt does not count; a negative penalty makes repeated tokens likelier.

use crate::graph::{Binary, Graph, GraphError, Input, SamplingInput, TokenScope, Value};

/// A score of a generated token becomes s − penalty.
pub(super) fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let penalty = graph.input(Input::Sampling(SamplingInput::PresencePenalty)); // [rows]
    let zero = graph.constant(0.0); // []
    let counts = super::token_counts(graph, scores, TokenScope::Generated); // [rows, vocab]
    let is_generated = graph.less(zero, counts)?; // [rows, vocab]
    let penalised = graph.binary(Binary::Subtract, scores, penalty)?; // [rows, vocab]
    graph.select(is_generated, penalised, scores) // [rows, vocab]
}
