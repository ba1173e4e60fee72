//! Logit bias, as OpenAI has it: a number added to the scores of the tokens that the request names, before sampling.
//!
//! Door: [`PROCESSOR`]. Greedy rows have it too. It stands before the penalties, as vLLM and transformers
//! (`SequenceBiasLogitsProcessor`) have it.

use super::BatchSampler::Everything;
use super::Processor;
use crate::graph::{Graph, GraphError, Value};

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[], is_off: |row| row.params.logit_bias.is_empty(), least: Everything, apply };

/// A score becomes s + bias.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    graph.add_logit_bias(scores) // [rows, vocab]
}
