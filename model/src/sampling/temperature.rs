//! Temperature: low sharpens the distribution, high flattens it.
//!
//! Door: [`apply`]. Greedy rows never come here, except in a batch that compiles one sampler for all, with a temperature of 1.

use crate::graph::{Binary, Graph, GraphError, Input, SamplingInput, Value};

/// A score becomes (s − best) / temperature: a distribution is the same whatever all scores have more, and the quotient of the best
/// is 0 at any temperature, where s / temperature could be infinite. A temperature of 1 changes no bit.
pub(super) fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let temperature = graph.input(Input::Sampling(SamplingInput::Temperature)); // [rows]
    let best = graph.arg_max(scores)?; // [rows]
    let best = graph.gather_columns(scores, best)?; // [rows]
    let (zero, one) = (graph.constant(0.0), graph.constant(1.0)); // []
    let is_below_one = graph.less(temperature, one)?; // [rows]
    let is_above_one = graph.less(one, temperature)?; // [rows]
    let shift = graph.select(is_below_one, best, zero)?; // [rows]
    let shift = graph.select(is_above_one, best, shift)?; // [rows]
    let shifted = graph.binary(Binary::Subtract, scores, shift)?; // [rows, vocab]
    graph.binary(Binary::Divide, shifted, temperature) // [rows, vocab]
}
