//! A sequence: what it is to do, and what is known of it wherever it is.

use std::time::Instant;

use proto::{RowReply, SamplingParams};

use crate::tokens::Tokens;
use crate::wants::ExpectedReport;
use crate::{PrefixScope, Prompt, PromptReport, PromptWants, Tenant};

/// Names a sequence; larger is younger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// What a sequence is to do.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceSpec {
    /// Token ids to read, and who may share their keys and values.
    pub prompt: Prompt,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What is reported of the prompt.
    pub wants: PromptWants,
    /// Tokens to make at most, at least one.
    pub max_new_tokens: u32,
    /// It goes on behind an end-of-sequence token.
    pub ignores_eos: bool,
    /// It fails if it has not ended by then.
    pub deadline: Option<Instant>,
    /// Which tokens may come next depends on those before: no token is made before its mask is there.
    pub is_masked: bool,
    /// Whose it is: those who share the server wait side by side.
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
    /// Its turn in the queue; sequences with the same have come at the same time, so to speak.
    pub(crate) turn: u64,
    pub(crate) scope: PrefixScope,
    /// Which tokens may come next; until the next one is known.
    mask: Option<Vec<u8>>,
    /// When it was submitted.
    pub(crate) since: Instant,
    /// The prompt, and the tokens made whose replies have come.
    pub(crate) tokens: Tokens,
    /// Prompt tokens that have been reported, and the first, of which there is nothing to report.
    num_reported: u32,
    /// It has run before.
    pub(crate) was_admitted: bool,
    /// Younger sequences that were admitted while there was no room for this one.
    pub(crate) num_overtaken: u32,
    /// There was no room for it when blocks had been given back so many times. Until the next time there is none.
    pub(crate) blocked_since: Option<u64>,
}

impl Sequence {
    /// A sequence that nothing has happened to.
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

    /// Tokens known: its prompt's, and those it made.
    pub(crate) fn num_tokens(&self) -> u32 {
        self.tokens.len()
    }

    /// Tokens that it made and whose replies have come.
    pub(crate) fn num_new_tokens(&self) -> u32 {
        self.tokens.num_made()
    }

    /// Notes which tokens may come next. False where any may, or that is known already.
    pub(crate) fn set_mask(&mut self, mask: Vec<u8>) -> bool {
        let is_wanted = self.is_masked && self.mask.is_none();
        if is_wanted {
            self.mask = Some(mask);
        }
        is_wanted
    }

    /// Adds a token whose reply has come. The mask was for this one.
    pub(crate) fn push_token(&mut self, token_id: u32) {
        self.tokens.push(token_id);
        self.mask = None;
    }

    /// Whether its tokens need masks.
    pub(crate) fn is_masked(&self) -> bool {
        self.is_masked
    }

    /// The mask of the next token.
    pub(crate) fn mask(&self) -> Option<&Vec<u8>> {
        self.mask.as_ref()
    }

    /// Whether the token behind `num_scheduled` new ones can be made: a mask needs to know all before it.
    pub(crate) fn can_sample(&self, num_scheduled: u32) -> bool {
        !self.is_masked || (self.mask.is_some() && num_scheduled == self.num_new_tokens())
    }

    /// What is still to be reported of its prompt.
    pub(crate) fn wants(&self) -> PromptWants {
        if self.num_reported < self.tokens.prompt_len() { self.wants } else { PromptWants::default() }
    }

    /// Takes the part of a reply on tokens of the prompt that were not reported before.
    pub(crate) fn report(&mut self, expected: &ExpectedReport, reply: &mut RowReply) -> PromptReport {
        let report = expected.take(reply, self.num_reported..self.tokens.prompt_len());
        self.num_reported += report.logprobs.len() as u32;
        report
    }
}
