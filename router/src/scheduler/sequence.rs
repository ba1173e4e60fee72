//! A sequence: what it is to do, and what is known of it wherever it is.

use std::time::Instant;

use proto::{PromptLogprobs, SamplingParams};

use super::prefix_tree::CacheScope;
use crate::tenant::Tenant;

/// Names a sequence; larger is younger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SequenceId(pub(crate) u64);

/// What a sequence is to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SequenceSpec {
    /// Token ids to read, at least one.
    pub(crate) prompt: Vec<u32>,
    /// How tokens are chosen.
    pub(crate) sampling: SamplingParams,
    /// Tokens to make at most, at least one.
    pub(crate) max_new_tokens: u32,
    /// It goes on behind an end-of-sequence token.
    pub(crate) ignores_eos: bool,
    /// It fails if it has not ended by then.
    pub(crate) deadline: Option<Instant>,
    /// Which tokens may come next depends on those before: no token is made before its mask is there.
    pub(crate) is_masked: bool,
    /// Whose it is: those who share the server wait side by side.
    pub(crate) tenant: Tenant,
    /// Only sequences of the same scope share the blocks of what they have in common.
    pub(crate) cache_scope: CacheScope,
}

/// A sequence that waits or runs.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    pub(super) sampling: SamplingParams,
    pub(super) max_new_tokens: u32,
    pub(super) ignores_eos: bool,
    pub(super) deadline: Option<Instant>,
    is_masked: bool,
    pub(super) tenant: Tenant,
    /// Its turn in the queue; sequences with the same have come at the same time, so to speak.
    pub(super) turn: u64,
    pub(super) cache_scope: CacheScope,
    /// Which tokens may come next; until the next one is known.
    mask: Option<Vec<u8>>,
    /// When it was submitted.
    pub(super) since: Instant,
    /// The prompt, and the tokens made whose replies have come.
    pub(super) tokens: Vec<u32>,
    prompt_len: u32,
    /// Prompt tokens whose log-probabilities have been reported.
    num_prompt_logprobs: u32,
    /// It has run before.
    pub(super) was_admitted: bool,
    /// Younger sequences that were admitted while there was no room for this one.
    pub(super) num_overtaken: u32,
    /// There was no room for it when blocks had been given back so many times. Until the next time there is none.
    pub(super) blocked_since: Option<u64>,
}

impl Sequence {
    /// A sequence that nothing has happened to.
    pub(super) fn new(id: SequenceId, spec: SequenceSpec, since: Instant) -> Self {
        let SequenceSpec { prompt, sampling, max_new_tokens, ignores_eos, deadline, is_masked, tenant, cache_scope } =
            spec;
        Self {
            id,
            sampling,
            max_new_tokens,
            ignores_eos,
            deadline,
            is_masked,
            tenant,
            turn: 0,
            cache_scope,
            mask: None,
            since,
            // A prompt has fewer than 2^32 tokens: its blocks were counted in u32.
            prompt_len: prompt.len() as u32,
            tokens: prompt,
            num_prompt_logprobs: 0,
            was_admitted: false,
            num_overtaken: 0,
            blocked_since: None,
        }
    }

    /// Tokens known: its prompt's, and those it made.
    pub(super) fn num_tokens(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Tokens that it made and whose replies have come.
    pub(super) fn num_new_tokens(&self) -> u32 {
        self.num_tokens() - self.prompt_len
    }

    /// Notes which tokens may come next. False where any may, or that is known already.
    pub(super) fn set_mask(&mut self, mask: Vec<u8>) -> bool {
        let is_wanted = self.is_masked && self.mask.is_none();
        if is_wanted {
            self.mask = Some(mask);
        }
        is_wanted
    }

    /// Adds a token whose reply has come. The mask was for this one.
    pub(super) fn push_token(&mut self, token_id: u32) {
        self.tokens.push(token_id);
        self.mask = None;
    }

    /// Whether its tokens need masks.
    pub(super) fn is_masked(&self) -> bool {
        self.is_masked
    }

    /// The mask of the next token.
    pub(super) fn mask(&self) -> Option<&Vec<u8>> {
        self.mask.as_ref()
    }

    /// Whether the token behind `num_scheduled` new ones can be made: a mask needs to know all before it.
    pub(super) fn can_sample(&self, num_scheduled: u32) -> bool {
        !self.is_masked || (self.mask.is_some() && num_scheduled == self.num_new_tokens())
    }

    /// Whether log-probabilities of its prompt are still to come, so that all of it must be computed.
    pub(super) fn wants_prompt_logprobs(&self) -> bool {
        self.sampling.wants_prompt_logprobs && self.num_prompt_logprobs < self.prompt_len
    }

    /// Of a report on the tokens from `position` on, what it says of those of the prompt that were not reported before.
    pub(super) fn unreported(&mut self, position: u32, mut report: PromptLogprobs) -> PromptLogprobs {
        let PromptLogprobs { logprobs, top_tokens, slot: _ } = &mut report;
        let num_of_prompt = self.prompt_len.saturating_sub(position) as usize;
        let num_known = self.num_prompt_logprobs.saturating_sub(position) as usize;
        keep(logprobs, num_known, num_of_prompt);
        keep(top_tokens, num_known, num_of_prompt);
        self.num_prompt_logprobs += logprobs.len() as u32;
        report
    }
}

/// Keeps what is between two places, as far as there is anything.
fn keep<T>(values: &mut Vec<T>, from: usize, to: usize) {
    values.truncate(to);
    values.drain(..from.min(values.len()));
}
