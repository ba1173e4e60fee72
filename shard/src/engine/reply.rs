//! What a step answers: the tokens of its rows, and which rows cannot go on.
//!
//! Door: [`Step::reply`]. Numbers of one row that are not finite are that row's affair, wherever in the model or in its sampler they
//! come from: a log-probability that is not a number tells.

use std::collections::BTreeMap;

use backend::{PromptToken, SampledRow, SampledToken, StepOutput};
use proto::row_failure::Kind;
use proto::{PromptLogprobs, RowFailure, StepReply, TopTokens};

use super::Step;

/// A chunk whose prompt log-probabilities are asked for.
pub(super) struct PromptReport {
    pub(super) slot: u32,
    pub(super) is_first: bool,
    pub(super) num_targets: usize,
    /// Best tokens that each target reports.
    pub(super) top_n: usize,
}

impl Step {
    /// What the router is told of `output`.
    pub(super) fn reply(&self, output: StepOutput) -> StepReply {
        let StepOutput { tokens, prompt_tokens, fingerprint } = output;
        let mut failures = BTreeMap::new();
        let prompt_logprobs = self.prompt_logprobs(prompt_tokens, &mut failures);
        for ((slot, row), token) in self.sampled_slots.iter().zip(&self.batch.sampled).zip(&tokens) {
            if token.logprob.is_nan() {
                failures.insert(*slot, reason(row));
            }
        }
        let tokens = self.sampled_slots.iter().zip(tokens).map(|(slot, token)| sampled_token(*slot, token)).collect();
        let failures = failures.into_iter().map(|(slot, kind)| RowFailure { slot, kind: kind.into() }).collect();
        StepReply { tokens, prompt_logprobs, fingerprint, failures, ..StepReply::default() }
    }

    /// Targets by chunk.
    fn prompt_logprobs(&self, targets: Vec<PromptToken>, failures: &mut BTreeMap<u32, Kind>) -> Vec<PromptLogprobs> {
        let mut targets = targets.into_iter();
        let report = |prompt: &PromptReport| {
            let of_chunk: Vec<PromptToken> = targets.by_ref().take(prompt.num_targets).collect();
            if of_chunk.iter().any(|target| target.logprob.is_nan()) {
                failures.insert(prompt.slot, Kind::NotFinite);
            }
            prompt.reply(of_chunk)
        };
        self.prompts.iter().map(report).collect()
    }
}

impl PromptReport {
    /// The targets, and before them the first token of the prompt, for which nothing was computed.
    fn reply(&self, targets: Vec<PromptToken>) -> PromptLogprobs {
        let first = self.is_first.then(|| PromptToken { logprob: f32::NAN, top_tokens: Vec::new() });
        let mut reply = PromptLogprobs { slot: self.slot, ..PromptLogprobs::default() };
        for PromptToken { logprob, mut top_tokens } in first.into_iter().chain(targets) {
            reply.logprobs.push(logprob);
            if self.top_n > 0 {
                top_tokens.truncate(self.top_n);
                let (token_ids, logprobs) = top_tokens.into_iter().unzip();
                reply.top_tokens.push(TopTokens { token_ids, logprobs });
            }
        }
        reply
    }
}

/// Why a row has made no token.
fn reason(row: &SampledRow) -> Kind {
    let may_choose_nothing = row.mask.as_ref().is_some_and(|mask| mask.tokens().next().is_none());
    if may_choose_nothing { Kind::NothingAllowed } else { Kind::NotFinite }
}

fn sampled_token(slot: u32, token: SampledToken) -> proto::SampledToken {
    let SampledToken { token_id, logprob, top_tokens } = token;
    let (top_token_ids, top_logprobs) = top_tokens.into_iter().unzip();
    proto::SampledToken { slot, token_id, logprob, top_token_ids, top_logprobs }
}
