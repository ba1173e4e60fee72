//! The choice of a token from log-probabilities, and the report of the best ones.
//!
//! Doors: [`choose`], [`top_tokens`]. Both look at what the processors have left.

use crate::graph::{Graph, GraphError, Input, SamplingInput, Unary, Value};

/// How rows come to their tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Choice {
    /// The best one.
    Best,
    /// Drawn by its probability.
    Drawn,
    /// One or the other, as each row says.
    EachItsOwn,
}

/// A token per row `[rows]` from scores and log-probabilities `[rows, vocab]`.
pub(super) fn choose(graph: &mut Graph, choice: Choice, [scores, logprobs]: [Value; 2]) -> Result<Value, GraphError> {
    match choice {
        Choice::Best => graph.arg_max(scores),  // [rows]
        Choice::Drawn => draw(graph, logprobs), // [rows]
        Choice::EachItsOwn => {
            let is_greedy = graph.input(Input::Sampling(SamplingInput::IsGreedy)); // [rows]
            let zero = graph.constant(0.0); // []
            let is_greedy = graph.less(zero, is_greedy)?; // [rows]
            let best = graph.arg_max(scores)?; // [rows]
            let drawn = draw(graph, logprobs)?; // [rows]
            graph.select(is_greedy, best, drawn) // [rows]
        }
    }
}

/// Draws a token `[rows]` with one uniform number per (seed, tokens generated so far), by inverse transform in the order
/// of the vocabulary. Nothing else enters, so a seed gives the same tokens whatever shares the batch.
fn draw(graph: &mut Graph, logprobs: Value) -> Result<Value, GraphError> {
    let words = [SamplingInput::SeedLow, SamplingInput::SeedHigh, SamplingInput::NumGenerated];
    let words = words.map(|word| graph.input(Input::Sampling(word))); // [rows]
    let u = graph.uniform(words)?; // [rows]
    let probabilities = graph.unary(Unary::Exp, logprobs)?; // [rows, vocab]
    graph.inverse_cdf(probabilities, u) // [rows]
}

/// Ids and log-probabilities of the n best tokens, n `[rows]`, both `[rows, top_tokens]`.
pub(super) fn top_tokens(graph: &mut Graph, logprobs: Value, n: Value) -> Result<[Value; 2], GraphError> {
    let ids = graph.top_tokens(logprobs, n)?; // [rows, top_tokens]
    let top_logprobs = graph.gather_columns(logprobs, ids)?; // [rows, top_tokens]
    Ok([ids, top_logprobs])
}
