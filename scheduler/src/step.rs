//! One round: what goes to the shards, and what must come back.
//!
//! A reply is compared with its step before anything is taken from it, so a shard that answers something else
//! changes nothing.

use proto::{DecodeRow, PromptChunk, StepReply, command};

use crate::Event;
use crate::rows::SlotId;
use crate::running::Admission;

/// One round of work.
#[derive(Debug, Default)]
pub struct Step {
    /// Slots whose rows have ended; the shards must hear of it before the chunks, which may reuse them.
    pub(crate) releases: Vec<SlotId>,
    /// Pieces of prompts.
    pub chunks: Vec<PromptChunk>,
    /// Rows that make one token each.
    pub rows: Vec<DecodeRow>,
    /// Sequences that left the queue, and those whose time was over.
    pub events: Vec<Event>,
    /// Sequences that had to go back to the queue because there were no blocks for them.
    pub num_preempted: u32,
    /// Sequences that had to go back to the queue because their tenant had more than its part of the slots.
    pub num_displaced: u32,
    pub(crate) outstanding: Outstanding,
}

/// What a step mainly does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It reads prompts; rows may ride along.
    Prefill,
    /// It only makes tokens.
    Decode,
}

/// A reply that does not belong to the step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum ReplyMismatch {
    #[error("a step reply came without a step")]
    NoStep,
    #[error("a step reply has {got} tokens for {expected} rows")]
    NumTokens { expected: usize, got: usize },
    #[error("a step reply has {got} lists of prompt logprobs for {expected} chunks")]
    NumPromptLogprobs { expected: usize, got: usize },
    #[error("a step reply names slot {got} where slot {expected} was asked")]
    Slot { expected: u32, got: u32 },
    #[error("a step reply has {got} prompt logprobs for a chunk, {expected} were asked for")]
    ChunkLen { expected: u32, got: usize },
    #[error("a step reply has top tokens for {got} tokens of a chunk, {expected} were asked for")]
    ChunkTopTokens { expected: u32, got: usize },
    #[error("a step reply says that slot {got} failed, which is not in the step")]
    FailedSlot { got: u32 },
}

/// A row that makes a token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) slot: SlotId,
    pub(crate) admission: Admission,
}

/// A chunk whose prompt logprobs were asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedLogprobs {
    pub(crate) slot: SlotId,
    pub(crate) admission: Admission,
    /// Position of the first token that is reported.
    pub(crate) position: u32,
    /// Tokens that are reported.
    pub(crate) num_tokens: u32,
    /// Top tokens were asked for too.
    pub(crate) has_top_tokens: bool,
}

/// What the reply to a step must contain, in order.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    pub(crate) chunk_tokens: Vec<Expected>,
    pub(crate) row_tokens: Vec<Expected>,
    pub(crate) prompt_logprobs: Vec<ExpectedLogprobs>,
}

impl Step {
    /// What it mainly does; `None` when it only releases.
    pub fn phase(&self) -> Option<Phase> {
        match (self.chunks.is_empty(), self.rows.is_empty()) {
            (false, _) => Some(Phase::Prefill),
            (true, false) => Some(Phase::Decode),
            (true, true) => None,
        }
    }

    /// Tokens the shards read in this step.
    pub fn num_tokens(&self) -> usize {
        self.rows.len() + self.chunks.iter().map(|chunk| chunk.token_ids.len()).sum::<usize>()
    }

    /// What goes to the shards, in this order.
    pub fn into_commands(self) -> Vec<command::Kind> {
        let phase = self.phase();
        let slots: Vec<u32> = self.releases.iter().map(|slot| slot.0).collect();
        let release = (!slots.is_empty()).then_some(command::Kind::Release(proto::Release { slots }));
        let compute = phase.map(|phase| match phase {
            Phase::Prefill => command::Kind::Prefill(proto::Prefill { chunks: self.chunks, rows: self.rows }),
            Phase::Decode => command::Kind::Decode(proto::Decode { rows: self.rows }),
        });
        release.into_iter().chain(compute).collect()
    }
}

impl Outstanding {
    /// Sequences whose tokens come, in the order of the reply: chunks first.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = &Expected> {
        self.chunk_tokens.iter().chain(&self.row_tokens)
    }

    /// Who was in a slot when the step was scheduled, if the reply says anything about it.
    pub(crate) fn admission(&self, slot: SlotId) -> Option<Admission> {
        let tokens = self.tokens().map(|expected| (expected.slot, expected.admission));
        let logprobs = self.prompt_logprobs.iter().map(|expected| (expected.slot, expected.admission));
        tokens.chain(logprobs).find(|(other, _)| *other == slot).map(|(_, admission)| admission)
    }

    /// # Errors
    /// When `reply` is not the answer to this step.
    pub(crate) fn check(&self, reply: &StepReply) -> Result<(), ReplyMismatch> {
        let expected = self.chunk_tokens.len() + self.row_tokens.len();
        if reply.tokens.len() != expected {
            return Err(ReplyMismatch::NumTokens { expected, got: reply.tokens.len() });
        }
        let (expected, got) = (self.prompt_logprobs.len(), reply.prompt_logprobs.len());
        if got != expected {
            return Err(ReplyMismatch::NumPromptLogprobs { expected, got });
        }
        for (expected, token) in self.tokens().zip(&reply.tokens) {
            check_slot(expected.slot, token.slot)?;
        }
        for (expected, logprobs) in self.prompt_logprobs.iter().zip(&reply.prompt_logprobs) {
            check_slot(expected.slot, logprobs.slot)?;
            if logprobs.logprobs.len() != expected.num_tokens as usize {
                return Err(ReplyMismatch::ChunkLen { expected: expected.num_tokens, got: logprobs.logprobs.len() });
            }
            let (num_tokens, got) =
                (if expected.has_top_tokens { expected.num_tokens } else { 0 }, logprobs.top_tokens.len());
            if got != num_tokens as usize {
                return Err(ReplyMismatch::ChunkTopTokens { expected: num_tokens, got });
            }
        }
        let stranger = reply.failures.iter().find(|failure| self.admission(SlotId(failure.slot)).is_none());
        stranger.map_or(Ok(()), |failure| Err(ReplyMismatch::FailedSlot { got: failure.slot }))
    }
}

fn check_slot(expected: SlotId, got: u32) -> Result<(), ReplyMismatch> {
    if expected.0 == got { Ok(()) } else { Err(ReplyMismatch::Slot { expected: expected.0, got }) }
}
