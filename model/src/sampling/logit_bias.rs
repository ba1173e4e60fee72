//! Logit bias, as OpenAI has it: a number added to the scores of the tokens that the request names, before sampling.
//!
//! Door: [`apply`]. Greedy rows have it too. It stands before the penalties, as vLLM and transformers
//! (`SequenceBiasLogitsProcessor`) have it.

use crate::graph::{Graph, GraphError, Value};

/// A score becomes s + bias.
pub(super) fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    graph.add_logit_bias(scores) // [rows, vocab]
}
