//! The counters of one sequence, and what it asks of the next step.
//!
//! ```text
//!  prompt [0 ........ prompt_len)   completion
//!         ├── cached ──┤                          written to the KV cache by the steps scheduled so far
//!                       next chunk of the prompt, then one decode row per step
//! ```

use proto::{DecodeRow, PromptChunk, SamplingParams};

use super::Step;
use super::blocks::BlockId;
use super::slots::SlotId;
use super::step::{Expected, ExpectedLogprobs};

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
}

/// A sequence that owns a slot and blocks.
#[derive(Debug)]
pub(super) struct Running {
    spec: SequenceSpec,
    pub(super) slot: SlotId,
    pub(super) blocks: Vec<BlockId>,
    /// Tokens in the KV cache once the steps scheduled so far are done.
    cached_tokens: u32,
    /// Tokens that the steps scheduled so far make.
    num_scheduled_tokens: u32,
    /// Tokens whose replies have come.
    pub(super) num_new_tokens: u32,
}

impl Running {
    pub(super) fn new(spec: SequenceSpec, slot: SlotId, blocks: Vec<BlockId>) -> Self {
        Self { spec, slot, blocks, cached_tokens: 0, num_scheduled_tokens: 0, num_new_tokens: 0 }
    }

    pub(super) fn max_new_tokens(&self) -> u32 {
        self.spec.max_new_tokens
    }

    pub(super) fn ignores_eos(&self) -> bool {
        self.spec.ignores_eos
    }

    /// Adds this sequence's share to a step: the next chunk of its prompt, as far as the budget goes, or its row.
    pub(super) fn join(&mut self, id: SequenceId, step: &mut Step, prefill_budget_tokens: &mut u32) {
        if self.unread_tokens() > 0 {
            if *prefill_budget_tokens > 0 {
                self.join_with_chunk(id, step, prefill_budget_tokens);
            }
        } else if self.num_scheduled_tokens < self.spec.max_new_tokens {
            let row = DecodeRow { slot: self.slot.0, position: self.cached_tokens, new_blocks: Vec::new() };
            self.cached_tokens += 1;
            self.num_scheduled_tokens += 1;
            step.rows.push(row);
            step.outstanding.row_tokens.push(Expected { id, slot: self.slot });
        }
    }

    fn join_with_chunk(&mut self, id: SequenceId, step: &mut Step, prefill_budget_tokens: &mut u32) {
        let is_first = self.cached_tokens == 0;
        let len = self.unread_tokens().min(*prefill_budget_tokens);
        let start = self.cached_tokens as usize;
        let new_blocks = if is_first { self.blocks.iter().map(|block| block.0).collect() } else { Vec::new() };
        let chunk = PromptChunk {
            slot: self.slot.0,
            position: self.cached_tokens,
            token_ids: self.spec.prompt[start..start + len as usize].to_vec(),
            new_blocks,
            sampling: is_first.then_some(self.spec.sampling),
            samples_token: len == self.unread_tokens(),
        };
        *prefill_budget_tokens -= len;
        self.cached_tokens += len;
        if self.spec.sampling.wants_prompt_logprobs {
            step.outstanding.prompt_logprobs.push(ExpectedLogprobs { id, slot: self.slot, num_tokens: len });
        }
        if chunk.samples_token {
            self.num_scheduled_tokens += 1;
            step.outstanding.chunk_tokens.push(Expected { id, slot: self.slot });
        }
        step.chunks.push(chunk);
    }

    fn unread_tokens(&self) -> u32 {
        // A prompt has fewer than 2^32 tokens: its blocks were counted in u32.
        (self.spec.prompt.len() as u32).saturating_sub(self.cached_tokens)
    }
}
