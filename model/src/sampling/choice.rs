//! The choice of a token from log-probabilities, and the report of the best tokens.
//!
//! Entry points: [`choose`], [`wanted_top_tokens`], [`top_tokens`]. In a sampler they follow all processors.

use super::Column;
use crate::graph::{Graph, GraphError, Unary, Value};

/// 1 if the row takes the best token, 0 if it samples at random.
pub(super) const IS_GREEDY: Column = Column::f32("is_greedy", |row| f32::from(row.params.is_greedy));
/// The lower half of the seed.
const SEED_LOW: Column = Column::u32("seed_low", |row| row.params.seed as u32).of_draws();
/// The upper half of the seed.
const SEED_HIGH: Column = Column::u32("seed_high", |row| (row.params.seed >> 32) as u32).of_draws();
/// The number of tokens that the row has generated before this step.
const NUM_GENERATED: Column = Column::u32("num_generated", |row| row.num_generated);
/// The number of best tokens to report.
const TOP_N_TOKENS: Column = Column::limit("top_n_tokens", |row| row.params.top_n_tokens);
/// The columns read by random sampling and by the report of top tokens.
pub(super) const COLUMNS: [Column; 4] = [SEED_LOW, SEED_HIGH, NUM_GENERATED, TOP_N_TOKENS];

/// The way in which a row chooses its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Choice {
    /// The token with the highest score.
    Best,
    /// A token drawn at random, according to the probabilities.
    Drawn,
    /// As `Best` or as `Drawn`; the column [`IS_GREEDY`] decides for each row.
    EachItsOwn,
}

/// Adds the choice of a token per row, `[rows]`, from scores and log-probabilities `[rows, vocab]`.
pub(super) fn choose(graph: &mut Graph, choice: Choice, [scores, logprobs]: [Value; 2]) -> Result<Value, GraphError> {
    match choice {
        Choice::Best => graph.arg_max(scores),  // [rows]
        Choice::Drawn => draw(graph, logprobs), // [rows]
        Choice::EachItsOwn => {
            let is_greedy = graph.input(IS_GREEDY.input()); // [rows]
            let zero = graph.constant(0.0); // []
            let is_greedy = graph.less(zero, is_greedy)?; // [rows]
            let best = graph.arg_max(scores)?; // [rows]
            let drawn = draw(graph, logprobs)?; // [rows]
            graph.select(is_greedy, best, drawn) // [rows]
        }
    }
}

/// Draws a token per row, `[rows]`, from the probabilities and one uniform number, by inverse transform in the order of
/// the vocabulary. The uniform number depends only on the seed and on how many tokens the row has generated, so it is
/// the same in any batch.
fn draw(graph: &mut Graph, logprobs: Value) -> Result<Value, GraphError> {
    let words = [SEED_LOW, SEED_HIGH, NUM_GENERATED].map(|word| graph.input(word.input())); // [rows]
    let u = graph.uniform(words)?; // [rows]
    let probabilities = graph.unary(Unary::Exp, logprobs)?; // [rows, vocab]
    graph.inverse_cdf(probabilities, u) // [rows]
}

/// Returns the ids and log-probabilities of the best tokens, as many as each row requests, both `[rows, top_tokens]`.
pub(super) fn wanted_top_tokens(graph: &mut Graph, logprobs: Value) -> Result<[Value; 2], GraphError> {
    let n = graph.input(TOP_N_TOKENS.input()); // [rows]
    top_tokens(graph, logprobs, n)
}

/// Returns the ids and log-probabilities of the n best tokens of each row, both `[rows, top_tokens]`; n is `[rows]`.
pub(super) fn top_tokens(graph: &mut Graph, logprobs: Value, n: Value) -> Result<[Value; 2], GraphError> {
    let ids = graph.top_tokens(logprobs, n)?; // [rows, top_tokens]
    let top_logprobs = graph.gather_columns(logprobs, ids)?; // [rows, top_tokens]
    Ok([ids, top_logprobs])
}
