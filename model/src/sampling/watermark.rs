//! Watermark (Kirchenbauer et al., 2023): after each token a part of the vocabulary is green, and green tokens are likelier. Who
//! knows which tokens are green counts them in a text, and finds more than chance would give.
//!
//! Door: [`PROCESSOR`]. As in TGI the token before seeds the choice, and the watermark comes before everything else. Which tokens
//! are green is not what torch's generator would permute: it is a hash, the same on every device
//! ([`Op::ContextUniform`](crate::graph::Op)).

use super::BatchSampler::Everything;
use super::{Column, Processor};
use crate::graph::{Binary, Graph, GraphError, Value};

/// Share of the vocabulary that is green.
const GAMMA: Column = Column::f32("watermark_gamma", |row| row.params.watermark_gamma);
/// What is added to the scores of green tokens.
const DELTA: Column = Column::f32("watermark_delta", |row| row.params.watermark_delta);

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[GAMMA, DELTA], is_off: |row| row.params.watermark_delta == 0.0, least: Everything, apply };

/// A score of a token whose number is below γ becomes s + δ.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let [gamma, delta] = [GAMMA, DELTA].map(|column| graph.input(column.input())); // [rows]
    let vocab_size = graph.node(scores).shape.fixed_len();
    let numbers = graph.context_uniform(vocab_size); // [rows, vocab]
    let is_green = graph.less(numbers, gamma)?; // [rows, vocab]
    let raised = graph.binary(Binary::Add, scores, delta)?; // [rows, vocab]
    graph.select(is_green, raised, scores) // [rows, vocab]
}
