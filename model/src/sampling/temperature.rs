//! Temperature: a low temperature sharpens the distribution, a high temperature flattens it.
//!
//! Entry point: [`PROCESSOR`]. A greedy row runs the processor only where one compiled sampler serves all rows of a
//! batch, and then with a temperature of 1.

use super::BatchSampler::Drawing;
use super::{Column, Processor};
use crate::graph::{Binary, Graph, GraphError, Value};

/// Temperatures are clamped to this range. Outside it the distribution hardly changes: below it only the best token (or
/// several equal ones) is left, above it all tokens that are not masked are equally likely. The range is narrower than
/// that of f32, because devices may flush very small numbers and quotients to zero.
const DISTINCT: (f32, f32) = (1e-20, 1e20);

const TEMPERATURE: Column =
    Column::f32("temperature", |row| row.params.temperature.clamp(DISTINCT.0, DISTINCT.1)).of_draws();

/// The processor.
pub(super) const PROCESSOR: Processor =
    Processor { columns: &[TEMPERATURE], is_off: |row| row.params.temperature == 1.0, least: Drawing, apply };

/// Changes a score s to (s − best) / temperature, unless the temperature is 1, which changes no bit. Subtracting one
/// number from all scores does not change the distribution, and the quotient of the best is 0, while s / temperature
/// could be infinite.
fn apply(graph: &mut Graph, scores: Value) -> Result<Value, GraphError> {
    let temperature = graph.input(TEMPERATURE.input()); // [rows]
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
