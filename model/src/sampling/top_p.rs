//! Top-p, nucleus sampling (Holtzman et al., 2019): keeps the best tokens whose probabilities together reach p.
//!
//! Apart from ties, this equals dropping, from the worst token upwards, the tokens whose cumulative probability is at
//! most 1 − p. The best token always stays, and so do tokens that tie with the last one kept.

use super::BatchSampler::Drawing;
use super::{Column, Processor};
use crate::graph::{Graph, GraphError, Unary, Value};

const TOP_P: Column = Column::f32("top_p", |row| row.params.top_p).of_draws();

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[TOP_P], is_off: |row| row.params.top_p == 1.0, least: Drawing, apply };

/// Sets the scores of tokens outside of the nucleus to minus infinity.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let p = graph.input(TOP_P.input()); // [rows]
    let logprobs = graph.log_softmax(scores)?; // [rows, vocab]
    let probabilities = graph.unary(Unary::Exp, logprobs)?; // [rows, vocab]
    let badness = graph.unary(Unary::Negate, scores)?; // [rows, vocab]
    super::keep_mass(graph, scores, [badness, probabilities], p) // [rows, vocab]
}
