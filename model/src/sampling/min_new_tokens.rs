//! The least number of new tokens: until a row has them, it may not end.
//!
//! Door: [`PROCESSOR`]. The same as transformers' `MinNewTokensLengthLogitsProcessor`. Which tokens end a row is data of the
//! step, not of the graph: a program is the same whatever `generation_config.json` says.

use super::BatchSampler::Penalising;
use super::Processor;
use crate::graph::{Graph, GraphError, Value};

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[], is_off: |row| row.params.min_new_tokens == 0, least: Penalising, apply };

/// Scores of the tokens that the row holds back in this step become minus infinity.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let vocab_size = graph.node(scores).shape.fixed_len();
    let is_held_back = graph.held_back(vocab_size); // [rows, vocab]
    let never = graph.constant(f32::NEG_INFINITY); // []
    graph.select(is_held_back, never, scores) // [rows, vocab]
}
