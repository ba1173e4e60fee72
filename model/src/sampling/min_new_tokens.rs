//! The minimum number of new tokens: a row may not choose an end-of-sequence token before it has generated that many,
//! unless its mask allows nothing else.
//!
//! Entry point: [`PROCESSOR`]. The rule is that of transformers' `MinNewTokensLengthLogitsProcessor`. The
//! end-of-sequence tokens are data of the step, not of the graph, so a compiled program does not depend on
//! `generation_config.json`.

use super::BatchSampler::Penalising;
use super::Processor;
use crate::graph::{Graph, GraphError, Value};

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[], is_off: |row| row.params.min_new_tokens == 0, least: Penalising, apply };

/// Sets the scores of the end-of-sequence tokens that the row may not choose yet to minus infinity.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let vocab_size = graph.node(scores).shape.fixed_len();
    let is_held_back = graph.held_back(vocab_size); // [rows, vocab]
    let never = graph.constant(f32::NEG_INFINITY); // []
    graph.select(is_held_back, never, scores) // [rows, vocab]
}
