//! The choice of a token from log-probabilities, and the report of the best ones.
//!
//! Doors: [`sample`], [`top_tokens`]. Both look at what the processors have left.

use crate::graph::{Graph, GraphError, Input, SamplingInput, Unary, Value};

/// Draws a token `[rows]` with one uniform number per (seed, tokens generated so far), by inverse transform in the order
/// of the vocabulary. Nothing else enters, so a seed gives the same tokens whatever shares the batch.
pub(super) fn sample(graph: &mut Graph, logprobs: Value) -> Result<Value, GraphError> {
    let words = [SamplingInput::SeedLow, SamplingInput::SeedHigh, SamplingInput::NumGenerated];
    let words = words.map(|word| graph.input(Input::Sampling(word))); // [rows]
    let u = graph.uniform(words)?; // [rows]
    let probabilities = graph.unary(Unary::Exp, logprobs)?; // [rows, vocab]
    graph.inverse_cdf(probabilities, u) // [rows]
}

/// Ids and log-probabilities of the best tokens, both `[rows, top_tokens]`.
pub(super) fn top_tokens(graph: &mut Graph, logprobs: Value) -> Result<[Value; 2], GraphError> {
    let n = graph.input(Input::Sampling(SamplingInput::TopNTokens)); // [rows]
    let ids = graph.top_tokens(logprobs, n)?; // [rows, top_tokens]
    let top_logprobs = graph.gather_columns(logprobs, ids)?; // [rows, top_tokens]
    Ok([ids, top_logprobs])
}
