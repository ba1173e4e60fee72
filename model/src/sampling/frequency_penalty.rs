//! Frequency penalty, as OpenAI defines it: a token becomes less likely each time it is generated.
//!
//! Entry point: [`PROCESSOR`]. The prompt does not count; a negative penalty makes repeated tokens likelier.

use super::BatchSampler::Penalising;
use super::{Column, Processor};
use crate::graph::{Binary, Graph, GraphError, TokenScope, Value};

const FREQUENCY_PENALTY: Column = Column::f32("frequency_penalty", |row| row.params.frequency_penalty);

/// The processor.
pub(super) const PROCESSOR: Processor = Processor {
    columns: &[FREQUENCY_PENALTY],
    is_off: |row| row.params.frequency_penalty == 0.0,
    least: Penalising,
    apply,
};

/// Subtracts penalty · (occurrences among the generated tokens) from each score.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let penalty = graph.input(FREQUENCY_PENALTY.input()); // [rows]
    let counts = super::token_counts(graph, scores, TokenScope::Generated); // [rows, vocab]
    let penalties = graph.binary(Binary::Multiply, counts, penalty)?; // [rows, vocab]
    graph.binary(Binary::Subtract, scores, penalties) // [rows, vocab]
}
