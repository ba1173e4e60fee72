//! Several sequences for one prompt, generated together with different seeds. The one with the largest mean logprob
//! wins, as in TGI. A request for one sequence goes through the same code.
//!
//! This module only reads the streams to their ends; it does not know how a sequence is generated.

use futures_util::future::try_join_all;

use super::GenerationError;
use super::stream::{Completion, TokenStream};
use super::timings::{Arrival, Timings};
use crate::memory::Account;

/// The outcome of one choice of a request: the sequence with the largest mean logprob, and the other sequences.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) best: Completion,
    /// The sequences that did not win, in the order in which they began.
    pub(crate) others: Vec<Completion>,
    /// The timings of the best sequence, except that their end is the end of the last sequence.
    pub(crate) timings: Timings,
    /// The memory that is counted for the sequences; released with the outcome, after it has become a response.
    _memory: Vec<Account>,
}

/// Reads all sequences to their ends and returns the outcome. When one sequence fails, the others are cancelled.
///
/// # Errors
/// The error of the first sequence that fails.
pub(super) async fn collect(mut sequences: Vec<TokenStream>, arrival: Arrival) -> Result<Outcome, GenerationError> {
    let mut completions = try_join_all(sequences.iter_mut().map(TokenStream::collect)).await?;
    // If several scores are equal, `max_by` returns the last of them, which in reverse order belongs to the first
    // sequence.
    let scores = completions.iter().map(mean_logprob).enumerate().rev();
    let best = scores.max_by(|(_, left), (_, right)| left.total_cmp(right)).map(|(index, _)| index);
    let best = best.ok_or(GenerationError::Incomplete)?;
    let timings = sequences[best].timings(arrival);
    let memory = sequences.into_iter().filter_map(TokenStream::into_kept).collect();
    Ok(Outcome { best: completions.remove(best), others: completions, timings, _memory: memory })
}

fn mean_logprob(completion: &Completion) -> f32 {
    let sum: f32 = completion.tokens.iter().map(|token| token.logprob).sum();
    sum / completion.tokens.len().max(1) as f32
}
