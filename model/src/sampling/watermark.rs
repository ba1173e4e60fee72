//! Watermark (Kirchenbauer et al., 2023): after each token, a part of the vocabulary is green, and green tokens are
//! likelier. A reader who knows which tokens are green finds more of them in a watermarked text than chance would
//! produce.
//!
//! Entry point: [`PROCESSOR`]. As in TGI, the previous token seeds the choice of green tokens, and the watermark runs
//! before all other processors. TGI permutes the vocabulary with torch's generator; here a hash decides which tokens
//! are green, the same on every device ([`Op::ContextUniform`](crate::graph::Op)).

use super::BatchSampler::Everything;
use super::{Column, Processor};
use crate::graph::{Binary, Graph, GraphError, Value};

/// The share of the vocabulary that is green.
const GAMMA: Column = Column::f32("watermark_gamma", |row| row.params.watermark_gamma);
/// The number added to the scores of green tokens.
const DELTA: Column = Column::f32("watermark_delta", |row| row.params.watermark_delta);

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[GAMMA, DELTA], is_off: |row| row.params.watermark_delta == 0.0, least: Everything, apply };

/// Adds δ to the score of each token whose hashed number is below γ.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let [gamma, delta] = [GAMMA, DELTA].map(|column| graph.input(column.input())); // [rows]
    let vocab_size = graph.node(scores).shape.fixed_len();
    let numbers = graph.context_uniform(vocab_size); // [rows, vocab]
    let is_green = graph.less(numbers, gamma)?; // [rows, vocab]
    let raised = graph.binary(Binary::Add, scores, delta)?; // [rows, vocab]
    graph.select(is_green, raised, scores) // [rows, vocab]
}
