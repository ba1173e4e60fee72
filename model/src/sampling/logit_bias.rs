//! Logit bias, as OpenAI defines it: a number added to the scores of the tokens that the request names, before
//! sampling.
//!
//! Entry point: [`PROCESSOR`]. It applies to greedy rows too. It runs before the penalties, as in vLLM and transformers
//! (`SequenceBiasLogitsProcessor`).

use super::BatchSampler::Everything;
use super::Processor;
use crate::graph::{Graph, GraphError, Value};

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[], is_off: |row| row.params.logit_bias.is_empty(), least: Everything, apply };

/// Adds the row's biases to the scores of the tokens that they name.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    graph.add_logit_bias(scores) // [rows, vocab]
}
