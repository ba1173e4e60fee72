//! Masks: a row chooses only among the tokens that its step allows, for example those that a grammar allows next.
//!
//! Entry point: [`PROCESSOR`]. It applies to greedy rows too. As in TGI it runs after the penalties and before
//! temperature. Log-probabilities are those of the remaining distribution.

use super::BatchSampler::Everything;
use super::Processor;
use crate::graph::{Graph, GraphError, Value};

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[], is_off: |row| !row.is_masked, least: Everything, apply };

/// Sets the scores of the tokens that are not allowed to minus infinity.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let vocab_size = graph.node(scores).shape.fixed_len();
    let is_allowed = graph.is_allowed(vocab_size); // [rows, vocab]
    let never = graph.constant(f32::NEG_INFINITY); // []
    graph.select(is_allowed, scores, never) // [rows, vocab]
}
