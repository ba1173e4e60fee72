//! Repetition penalty (Keskar et al., 2019): tokens that occur in the row, prompt included, become less likely.
//!
//! The penalty applies once per distinct token, however often it occurs. A penalty below 1 makes the tokens likelier.

use super::BatchSampler::Penalising;
use super::{Column, Processor};
use crate::graph::{Binary, Graph, GraphError, TokenScope, Value};

const REPETITION_PENALTY: Column = Column::f32("repetition_penalty", |row| row.params.repetition_penalty);

/// The processor.
pub(super) const PROCESSOR: Processor = Processor {
    columns: &[REPETITION_PENALTY],
    is_off: |row| row.params.repetition_penalty == 1.0,
    least: Penalising,
    apply,
};

/// Changes the score s of each token seen: s · penalty if s < 0, else s / penalty.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let penalty = graph.input(REPETITION_PENALTY.input()); // [rows]
    let zero = graph.constant(0.0); // []
    let counts = super::token_counts(graph, scores, TokenScope::Context); // [rows, vocab]
    let is_seen = graph.less(zero, counts)?; // [rows, vocab]
    let is_negative = graph.less(scores, zero)?; // [rows, vocab]
    let multiplied = graph.binary(Binary::Multiply, scores, penalty)?; // [rows, vocab]
    let divided = graph.binary(Binary::Divide, scores, penalty)?; // [rows, vocab]
    let penalised = graph.select(is_negative, multiplied, divided)?; // [rows, vocab]
    graph.select(is_seen, penalised, scores) // [rows, vocab]
}
