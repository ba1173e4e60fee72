//! Presence penalty, as OpenAI defines it: a generated token becomes less likely, however often it occurs.
//!
//! Entry point: [`PROCESSOR`]. The prompt does not count; a negative penalty makes repeated tokens likelier.

use super::BatchSampler::Penalising;
use super::{Column, Processor};
use crate::graph::{Binary, Graph, GraphError, TokenScope, Value};

const PRESENCE_PENALTY: Column = Column::f32("presence_penalty", |row| row.params.presence_penalty);

/// The processor.
pub(super) const PROCESSOR: Processor = Processor {
    columns: &[PRESENCE_PENALTY],
    is_off: |row| row.params.presence_penalty == 0.0,
    least: Penalising,
    apply,
};

/// Subtracts the penalty from the score of each generated token.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let penalty = graph.input(PRESENCE_PENALTY.input()); // [rows]
    let zero = graph.constant(0.0); // []
    let counts = super::token_counts(graph, scores, TokenScope::Generated); // [rows, vocab]
    let is_generated = graph.less(zero, counts)?; // [rows, vocab]
    let penalised = graph.binary(Binary::Subtract, scores, penalty)?; // [rows, vocab]
    graph.select(is_generated, penalised, scores) // [rows, vocab]
}
