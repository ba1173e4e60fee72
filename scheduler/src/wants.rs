//! The reports on a prompt that a sequence asks for.
//!
//! Entry points: [`PromptWants`], with which a sequence is submitted; [`PromptWants::ask`], which puts the wanted
//! reports into a row of a step; [`ExpectedReport`], which checks a reply and turns it into a [`PromptReport`]. Each
//! token of a prompt but the first is reported once, in order: a sequence that was preempted reads its tokens again,
//! but reports only the tokens that it had not reported before.

use std::ops::Range;

use proto::{GivenTokens, Logprobs, Row, RowReply, TopTokens};

use crate::ReplyMismatch;

/// The reports on a prompt that a sequence asks for. By default there are none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptWants {
    /// `Some(n)` asks for the log-probability of each prompt token but the first, and for the `n` most probable tokens
    /// at its position.
    pub logprobs: Option<u32>,
}

/// A report on tokens of a prompt. The reports of all steps together cover every token but the first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PromptReport {
    /// The log-probabilities of consecutive prompt tokens. The first step's report begins with the second token of the
    /// prompt.
    pub logprobs: Vec<f32>,
    /// The most probable tokens at each of these positions. A step's report has none if the sequence does not ask for
    /// them.
    pub top_tokens: Vec<TopTokens>,
}

/// The report that a reply must have for a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedReport {
    /// The position of the first token that is reported.
    position: u32,
    /// The number of tokens that are reported.
    num_tokens: u32,
    has_top_tokens: bool,
}

impl PromptWants {
    /// Asks for the log-probabilities of the prompt's tokens, with this number of most probable tokens for each; `None`
    /// asks for nothing.
    pub fn of_logprobs(logprobs: Option<u32>) -> Self {
        Self { logprobs }
    }

    /// True if the whole prompt must be computed, without the prefix cache.
    pub(crate) fn reads_all(&self) -> bool {
        self.logprobs.is_some()
    }

    /// Asks for the wanted reports in a row that reads a chunk of a prompt, and returns the expected report.
    /// `next_token_id` is the token after that chunk, or `None` if the chunk is the last one.
    pub(crate) fn ask(&self, row: &mut Row, next_token_id: Option<u32>) -> Option<ExpectedReport> {
        let top_n_tokens = self.logprobs?;
        row.logprobs = Some(Logprobs { next_token_id, top_n_tokens });
        let num_tokens = row.token_ids.len() as u32 - 1 + u32::from(next_token_id.is_some());
        Some(ExpectedReport { position: row.position + 1, num_tokens, has_top_tokens: top_n_tokens > 0 })
    }
}

impl PromptReport {
    /// Returns the report on the first token of a prompt, which has no log-probability: its value is NaN.
    pub fn of_first_token() -> Self {
        Self { logprobs: vec![f32::NAN], top_tokens: vec![TopTokens::default()] }
    }

    /// True if nothing is reported.
    pub fn is_empty(&self) -> bool {
        self.logprobs.is_empty()
    }

    /// Adds the report of the next step.
    pub fn extend(&mut self, next: Self) {
        self.logprobs.extend(next.logprobs);
        self.top_tokens.extend(next.top_tokens);
    }
}

impl ExpectedReport {
    /// # Errors
    /// When `reply` has more or fewer log-probabilities or top tokens than `expected`.
    pub(crate) fn check(expected: Option<&Self>, reply: &RowReply) -> Result<(), ReplyMismatch> {
        let slot = reply.slot;
        let (logprobs, top_tokens) =
            reply.logprobs.as_ref().map_or((0, 0), |given| (given.logprobs.len(), given.top_tokens.len()));
        let num_tokens = expected.map_or(0, |expected| expected.num_tokens);
        if logprobs != num_tokens as usize {
            return Err(ReplyMismatch::NumLogprobs { slot, expected: num_tokens, got: logprobs });
        }
        let num_tokens = if expected.is_some_and(|expected| expected.has_top_tokens) { num_tokens } else { 0 };
        if top_tokens != num_tokens as usize {
            return Err(ReplyMismatch::NumTopTokens { slot, expected: num_tokens, got: top_tokens });
        }
        Ok(())
    }

    /// Takes the report on the tokens at positions `unreported` of the prompt out of a reply.
    pub(crate) fn take(&self, reply: &mut RowReply, unreported: Range<u32>) -> PromptReport {
        let GivenTokens { mut logprobs, mut top_tokens } = *reply.logprobs.take().unwrap_or_default();
        let [start, end] = [unreported.start, unreported.end].map(|at| at.saturating_sub(self.position) as usize);
        keep(&mut logprobs, start..end);
        keep(&mut top_tokens, start..end);
        PromptReport { logprobs, top_tokens }
    }
}

/// Keeps the values at the indices of `range`, as far as they exist, and drops the others.
fn keep<T>(values: &mut Vec<T>, range: Range<usize>) {
    values.truncate(range.end);
    values.drain(..range.start.min(values.len()));
}
