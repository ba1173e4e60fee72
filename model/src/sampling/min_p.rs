//! Min-p (Nguyen et al., 2024): drops tokens that are much less probable than the best one.
//!
//! Entry point: [`PROCESSOR`]. vLLM and transformers (`MinPLogitsWarper`) have the same rule. The order is that of
//! transformers: after temperature, top-k and top-p, before typical-p.

use super::BatchSampler::Drawing;
use super::{Column, Processor};
use crate::graph::{Binary, Graph, GraphError, Unary, Value};

const MIN_P: Column = Column::f32("min_p", |row| row.params.min_p).of_draws();

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[MIN_P], is_off: |row| row.params.min_p == 0.0, least: Drawing, apply };

/// Sets the scores of tokens with p < `min_p` · (p of the best token) to minus infinity. The best token and those that
/// tie with it always stay.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let min_p = graph.input(MIN_P.input()); // [rows]
    let best = graph.arg_max(scores)?; // [rows]
    let best = graph.gather_columns(scores, best)?; // [rows]
    // The quotient of two probabilities needs no sum over the vocabulary.
    let distance = graph.binary(Binary::Subtract, scores, best)?; // [rows, vocab]
    let ratio = graph.unary(Unary::Exp, distance)?; // [rows, vocab]
    // A NaN score is not dropped, so the logprob of the row shows it.
    let is_dropped = graph.less(ratio, min_p)?; // [rows, vocab]
    let never = graph.constant(f32::NEG_INFINITY); // []
    graph.select(is_dropped, never, scores) // [rows, vocab]
}
