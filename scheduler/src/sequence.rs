//! A sequence, waiting or running: its specification and its tokens.

use std::time::Instant;

use proto::{RowReply, SamplingParams};

use crate::tokens::Tokens;
use crate::wants::ExpectedReport;
use crate::{PrefixScope, Prompt, PromptReport, PromptWants, Tenant};

/// The id of a sequence. Younger sequences have larger ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// The specification of a sequence: its prompt, how tokens are chosen, and when it ends.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceSpec {
    /// The token ids to read, and the scope within which their keys and values are shared.
    pub prompt: Prompt,
    /// The parameters for choosing tokens.
    pub sampling: SamplingParams,
    /// The reports on the prompt for which the client asks.
    pub wants: PromptWants,
    /// The maximum number of tokens to generate. It must be at least 1.
    pub max_new_tokens: u32,
    /// True if the sequence goes on after an end-of-sequence token.
    pub ignores_eos: bool,
    /// The time at which the sequence times out if it has not ended.
    pub deadline: Option<Instant>,
    /// True if every generated token needs a mask, which depends on the tokens before it.
    pub is_masked: bool,
    /// The tenant. Tenants take turns in the queue and share the slots.
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
    /// The sequence's turn in the queue.
    pub(crate) turn: u64,
    pub(crate) scope: PrefixScope,
    /// The mask of the next token. `None` until it is set, and again once the token is known.
    mask: Option<Vec<u8>>,
    /// The time of submission.
    pub(crate) since: Instant,
    /// The prompt, and the generated tokens whose replies have come.
    pub(crate) tokens: Tokens,
    /// The number of prompt tokens reported so far, including the first token, which has no report.
    num_reported: u32,
    /// True if the sequence was admitted at least once.
    pub(crate) was_admitted: bool,
    /// The number of later sequences that were admitted while this sequence was the first without room. 0 again once it
    /// is admitted.
    pub(crate) num_overtaken: u32,
    /// The value of `KvPool::num_returns` when there was no room for the sequence. Until that value changes, the
    /// sequence counts as blocked.
    pub(crate) blocked_since: Option<u64>,
}

impl Sequence {
    /// Creates a waiting sequence.
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

    /// The number of known tokens: the prompt's tokens and the generated ones.
    pub(crate) fn num_tokens(&self) -> u32 {
        self.tokens.len()
    }

    /// The number of generated tokens whose replies have come.
    pub(crate) fn num_new_tokens(&self) -> u32 {
        self.tokens.num_made()
    }

    /// Sets the mask of the next token. Returns false, and drops the mask, if the sequence needs none or already has
    /// one.
    pub(crate) fn set_mask(&mut self, mask: Vec<u8>) -> bool {
        let is_wanted = self.is_masked && self.mask.is_none();
        if is_wanted {
            self.mask = Some(mask);
        }
        is_wanted
    }

    /// Adds a generated token, and drops the mask of that token.
    pub(crate) fn push_token(&mut self, token_id: u32) {
        self.tokens.push(token_id);
        self.mask = None;
    }

    /// True if every generated token needs a mask.
    pub(crate) fn is_masked(&self) -> bool {
        self.is_masked
    }

    /// Returns the mask of the next token, if it is set.
    pub(crate) fn mask(&self) -> Option<&Vec<u8>> {
        self.mask.as_ref()
    }

    /// True if a step can sample the token after `num_scheduled` generated tokens. If that token needs a mask, the mask
    /// must be set, and all tokens before it must be known.
    pub(crate) fn can_sample(&self, num_scheduled: u32) -> bool {
        !self.is_masked || (self.mask.is_some() && num_scheduled == self.num_new_tokens())
    }

    /// Returns the reports to ask for: the wanted ones, until the whole prompt is reported.
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
