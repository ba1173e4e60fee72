//! Watermark (Kirchenbauer et al., 2023): after each token a part of the vocabulary is green, and green tokens are likelier. Who
//! knows which tokens are green counts them in a text, and finds more than chance would give.
//!
//! Door: [`apply`]. As in TGI the token before seeds the choice, and the watermark comes before everything else. Which tokens
//! are green is not what torch's generator would permute: it is a hash, the same on every device
//! ([`Op::ContextUniform`](crate::graph::Op)).

use crate::graph::{Binary, Graph, GraphError, Input, SamplingInput, Value};

/// A score of a token whose number is below γ becomes s + δ.
pub(super) fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let inputs = [SamplingInput::WatermarkGamma, SamplingInput::WatermarkDelta];
    let [gamma, delta] = inputs.map(|input| graph.input(Input::Sampling(input))); // [rows]
    let vocab_size = graph.node(scores).shape.fixed_len();
    let numbers = graph.context_uniform(vocab_size); // [rows, vocab]
    let is_green = graph.less(numbers, gamma)?; // [rows, vocab]
    let raised = graph.binary(Binary::Add, scores, delta)?; // [rows, vocab]
    graph.select(is_green, raised, scores) // [rows, vocab]
}
