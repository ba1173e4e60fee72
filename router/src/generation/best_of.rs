//! Several sequences for one prompt, made side by side with different seeds; the one with the largest mean logprob
//! wins, as in TGI. A request for one sequence takes the same way.
//!
//! It does not know how a sequence is made: it reads streams to their ends.

use futures_util::future::try_join_all;

use super::GenerationError;
use super::stream::{Completion, TokenStream};
use super::timings::{Arrival, Timings};
use crate::memory::Account;

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) best: Completion,
    /// The sequences that did not win, in the order they were begun.
    pub(crate) others: Vec<Completion>,
    /// Of the winner, up to the end of the last.
    pub(crate) timings: Timings,
    /// Given back when the outcome has become an answer.
    _memory: Vec<Account>,
}

/// Waits for all sequences. When one fails, the others are cancelled.
///
/// # Errors
/// The first failure.
pub(super) async fn collect(mut sequences: Vec<TokenStream>, arrival: Arrival) -> Result<Outcome, GenerationError> {
    let mut completions = try_join_all(sequences.iter_mut().map(TokenStream::collect)).await?;
    // From the back, because of equals the last one seen wins.
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
