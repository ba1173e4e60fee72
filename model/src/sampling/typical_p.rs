//! Locally typical sampling (Meister et al., 2022).
//!
//! Entry point: [`PROCESSOR`]. It keeps the tokens whose information content is closest to the expected one.

use super::BatchSampler::Drawing;
use super::{Column, Processor};
use crate::graph::{Binary, Graph, GraphError, Unary, Value};

const TYPICAL_P: Column = Column::f32("typical_p", |row| row.params.typical_p).of_draws();

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[TYPICAL_P], is_off: |row| row.params.typical_p == 1.0, least: Drawing, apply };

/// With log-probabilities L and entropy H, keeps tokens in the order of |−L − H| until their probabilities together
/// reach `typical_p`, and those that tie with the last one. Sets the scores of the other tokens to minus infinity.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let typical_p = graph.input(TYPICAL_P.input()); // [rows]
    let zero = graph.constant(0.0); // []
    let logprobs = graph.log_softmax(scores)?; // [rows, vocab]
    let probabilities = graph.unary(Unary::Exp, logprobs)?; // [rows, vocab]
    let products = graph.binary(Binary::Multiply, probabilities, logprobs)?; // [rows, vocab]
    let is_possible = graph.less(zero, probabilities)?; // [rows, vocab]
    // 0 · −infinity is NaN, but an impossible token adds nothing to the entropy.
    let products = graph.select(is_possible, products, zero)?; // [rows, vocab]
    let negative_entropy = graph.sum_columns(products)?; // [rows]
    let surprise = graph.binary(Binary::Subtract, logprobs, negative_entropy)?; // [rows, vocab]
    let distance = graph.unary(Unary::Abs, surprise)?; // [rows, vocab]
    super::keep_mass(graph, scores, [distance, probabilities], typical_p) // [rows, vocab]
}
