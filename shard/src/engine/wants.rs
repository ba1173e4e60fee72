//! The results that rows request from a step, and the reply with them.
//!
//! Entry points: [`Asked::push`] adds the requests of a row to the batch; [`Asked::reply`] makes the reply from the
//! output of the backend. A row whose logits are not finite, or whose mask allows no token, fails alone: the step has
//! no error, and the results of other rows are valid. The backend returns NaN as the log-probability of the failed
//! row's sampled token, or of one of its prompt tokens.

use std::sync::Arc;

use backend::{Batch, PromptToken, SampledRow, SampledToken, StepOutput};
use model::graph::Graph;
use model::sampling::TokenMask;
use proto::{GivenTokens, Row, RowFailure, RowReply, StepReply, TopTokens};

use crate::rows;

/// The batch of a step, and the rows that request results.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) batch: Batch,
    /// The rows that request results, in the order of the step.
    rows: Vec<AskedRow>,
}

/// A row that requests results. In the output, its results follow those of the previous row.
struct AskedRow {
    slot: u32,
    /// The index in [`Batch::sampled`], if the row samples a token.
    sampled: Option<usize>,
    logprobs: Option<AskedLogprobs>,
}

/// The request for the log-probabilities of given tokens (targets).
struct AskedLogprobs {
    num_targets: usize,
    /// The number of best tokens to report with each target.
    top_n: usize,
}

impl Asked {
    /// Adds the requests of `row`, the last row of the batch. `open` is the state of the row after the step. `mask` has
    /// the tokens that the row may choose, and the sampler that applies the mask.
    pub(super) fn push(&mut self, row: &Row, open: &rows::Row, mask: Option<(TokenMask, Arc<Graph>)>) {
        let index = self.batch.rows.len() - 1;
        let logprobs = row.logprobs.as_ref().map(|logprobs| {
            let first_token = self.batch.rows[index].first_token;
            let targets = row.token_ids.iter().skip(1).chain(&logprobs.next_token_id);
            let mut num_targets = 0;
            for (i, token_id) in targets.enumerate() {
                self.batch.push_target(first_token + i, *token_id as i32, logprobs.top_n_tokens);
                num_targets += 1;
            }
            AskedLogprobs { num_targets, top_n: logprobs.top_n_tokens as usize }
        });
        let prompt_len = open.prompt_len.filter(|_| row.token.is_some());
        let sampled = prompt_len.map(|prompt_len| {
            self.batch.push_sampled(index, prompt_len, &open.sampler);
            if let Some((mask, graph)) = mask {
                self.batch.mask_sampled(mask, graph);
            }
            self.batch.sampled.len() - 1
        });
        if sampled.is_some() || logprobs.is_some() {
            self.rows.push(AskedRow { slot: row.slot, sampled, logprobs });
        }
    }

    /// Returns the reply with the results in `output`, row by row.
    pub(super) fn reply(self, output: StepOutput) -> StepReply {
        let StepOutput { tokens, prompt_tokens, fingerprint } = output;
        let (mut tokens, mut targets) = (tokens.into_iter(), prompt_tokens.into_iter());
        let reply = |asked: AskedRow| {
            let AskedRow { slot, sampled, logprobs } = asked;
            let targets = logprobs.map(|AskedLogprobs { num_targets, top_n }| {
                let targets: Vec<PromptToken> = targets.by_ref().take(num_targets).collect();
                (targets, top_n)
            });
            let token = sampled.and_then(|index| Some((&self.batch.sampled[index], tokens.next()?)));
            match failure(targets.as_ref().map(|(targets, _)| targets.as_slice()), token.as_ref()) {
                Some(failure) => RowReply { slot, failure: Some(failure.into()), ..RowReply::default() },
                None => RowReply {
                    slot,
                    failure: None,
                    token: token.map(|(_, token)| sampled_token(token)),
                    logprobs: targets.map(|(targets, top_n)| Box::new(given_tokens(targets, top_n))),
                },
            }
        };
        let rows = self.rows.into_iter().map(reply).collect();
        StepReply { rows, fingerprint, ..StepReply::default() }
    }
}

/// Returns the failure of a row, if its results show one.
fn failure(targets: Option<&[PromptToken]>, token: Option<&(&SampledRow, SampledToken)>) -> Option<RowFailure> {
    if let Some((row, token)) = token
        && token.logprob.is_nan()
    {
        let may_choose_nothing = row.mask.as_ref().is_some_and(|mask| mask.tokens().next().is_none());
        return Some(if may_choose_nothing { RowFailure::NothingAllowed } else { RowFailure::NotFinite });
    }
    let is_broken = targets.unwrap_or_default().iter().any(|target| target.logprob.is_nan());
    is_broken.then_some(RowFailure::NotFinite)
}

fn given_tokens(targets: Vec<PromptToken>, top_n: usize) -> GivenTokens {
    let mut given = GivenTokens::default();
    for PromptToken { logprob, mut top_tokens } in targets {
        given.logprobs.push(logprob);
        if top_n > 0 {
            top_tokens.truncate(top_n);
            given.top_tokens.push(to_top_tokens(top_tokens));
        }
    }
    given
}

fn sampled_token(token: SampledToken) -> proto::SampledToken {
    let SampledToken { token_id, logprob, top_tokens } = token;
    let top_tokens = (!top_tokens.is_empty()).then(|| Box::new(to_top_tokens(top_tokens)));
    proto::SampledToken { token_id, logprob, top_tokens }
}

fn to_top_tokens(tokens: Vec<(u32, f32)>) -> TopTokens {
    let (token_ids, logprobs) = tokens.into_iter().unzip();
    TopTokens { token_ids, logprobs }
}
