//! A sequence, waiting or running: its task and its tokens.

use std::time::Instant;

use proto::{RowReply, SamplingParams};

use crate::tokens::Tokens;
use crate::wants::ExpectedReport;
use crate::{PrefixScope, Prompt, PromptReport, PromptWants, Tenant};

/// The id of a sequence. Younger sequences have larger ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// The task of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceSpec {
    /// The token ids to read, and the scope within which their keys and values are shared.
    pub prompt: Prompt,
    /// The parameters by which tokens are chosen.
    pub sampling: SamplingParams,
    /// The wanted reports on the prompt.
    pub wants: PromptWants,
    /// The most tokens to make, at least one.
    pub max_new_tokens: u32,
    /// True if it goes on after an end-of-sequence token.
    pub ignores_eos: bool,
    /// The time at which it fails if it has not ended.
    pub deadline: Option<Instant>,
    /// True if every token needs a mask, which depends on the tokens before it.
    pub is_masked: bool,
    /// The tenant. Tenants take turns in the queue.
    pub tenant: Tenant,
}

/// A sequence that waits or runs.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) sampling: SamplingParams,
    wants: PromptWants,
    pub(crate) max_new_tokens: u32,
    pub(crate) ignores_eos: bool,
    pub(crate) deadline: Option<Instant>,
    is_masked: bool,
    pub(crate) tenant: Tenant,
    /// Its turn in the queue. Sequences with the same turn count as arrived at the same time.
    pub(crate) turn: u64,
    pub(crate) scope: PrefixScope,
    /// The mask of the next token, until that token is known.
    mask: Option<Vec<u8>>,
    /// The time of submission.
    pub(crate) since: Instant,
    /// The prompt, and the tokens whose replies have come.
    pub(crate) tokens: Tokens,
    /// The number of prompt tokens reported so far, including the first, which has no report.
    num_reported: u32,
    /// True if it has run before.
    pub(crate) was_admitted: bool,
    /// The number of younger sequences that were admitted while there was no room for this one.
    pub(crate) num_overtaken: u32,
    /// The pool's count of returned blocks when there was no room for it. Until the count changes, there is none.
    pub(crate) blocked_since: Option<u64>,
}

impl Sequence {
    /// A new sequence.
    pub(crate) fn new(id: SequenceId, spec: SequenceSpec, since: Instant) -> Self {
        let SequenceSpec { prompt, sampling, wants, max_new_tokens, ignores_eos, deadline, is_masked, tenant } = spec;
        let Prompt { token_ids, scope } = prompt;
        Self {
            id,
            sampling,
            wants,
            max_new_tokens,
            ignores_eos,
            deadline,
            is_masked,
            tenant,
            turn: 0,
            scope,
            mask: None,
            since,
            tokens: Tokens::new(token_ids),
            num_reported: 1,
            was_admitted: false,
            num_overtaken: 0,
            blocked_since: None,
        }
    }

    /// The number of known tokens: the prompt's and those it made.
    pub(crate) fn num_tokens(&self) -> u32 {
        self.tokens.len()
    }

    /// The number of tokens it made whose replies have come.
    pub(crate) fn num_new_tokens(&self) -> u32 {
        self.tokens.num_made()
    }

    /// Sets the mask of the next token. Returns false if the sequence needs none or has one.
    pub(crate) fn set_mask(&mut self, mask: Vec<u8>) -> bool {
        let is_wanted = self.is_masked && self.mask.is_none();
        if is_wanted {
            self.mask = Some(mask);
        }
        is_wanted
    }

    /// Adds a token from a reply, and drops its mask.
    pub(crate) fn push_token(&mut self, token_id: u32) {
        self.tokens.push(token_id);
        self.mask = None;
    }

    /// True if its tokens need masks.
    pub(crate) fn is_masked(&self) -> bool {
        self.is_masked
    }

    /// The mask of the next token.
    pub(crate) fn mask(&self) -> Option<&Vec<u8>> {
        self.mask.as_ref()
    }

    /// True if the token after `num_scheduled` new ones can be made. Its mask depends on all tokens before it.
    pub(crate) fn can_sample(&self, num_scheduled: u32) -> bool {
        !self.is_masked || (self.mask.is_some() && num_scheduled == self.num_new_tokens())
    }

    /// The reports on its prompt that are still missing.
    pub(crate) fn wants(&self) -> PromptWants {
        if self.num_reported < self.tokens.prompt_len() { self.wants } else { PromptWants::default() }
    }

    /// Takes a reply's report on prompt tokens that were not reported before.
    pub(crate) fn report(&mut self, expected: &ExpectedReport, reply: &mut RowReply) -> PromptReport {
        let report = expected.take(reply, self.num_reported..self.tokens.prompt_len());
        self.num_reported += report.logprobs.len() as u32;
        report
    }
}
