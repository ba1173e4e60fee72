//! Top-k: keeps only the k best tokens, and those that tie with the k-th.
//!
//! Entry point: [`PROCESSOR`]. A k of 0, or one beyond the vocabulary, keeps all tokens.

use super::BatchSampler::Drawing;
use super::{Column, Processor};
use crate::graph::{Graph, GraphError, Value};

const TOP_K: Column = Column::limit("top_k", |row| row.params.top_k).of_draws();

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[TOP_K], is_off: |row| row.params.top_k == 0, least: Drawing, apply };

/// Sets the scores below the k-th best to minus infinity.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let k = graph.input(TOP_K.input()); // [rows]
    let threshold = graph.kth_largest(scores, k)?; // [rows]
    let is_dropped = graph.less(scores, threshold)?; // [rows, vocab]
    let never = graph.constant(f32::NEG_INFINITY); // []
    graph.select(is_dropped, never, scores) // [rows, vocab]
}
