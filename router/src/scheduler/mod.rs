//! Who runs in which step: a pure value with five verbs, `submit`, `cancel`, `schedule`, `apply`, `fail_all`.
//!
//! It owns the waiting queue, the running sequences, the slots and the KV blocks. Sequences join and leave at every
//! step; one step mixes prompt chunks and decode rows. `schedule` books what a step will write before its reply is
//! there, so it may be called again while steps are under way; `apply` takes the replies in order. Whatever a reply
//! says about a sequence that has ended meanwhile is dropped. There is no clock (time is an argument), no socket, no
//! lock and nothing async here.

mod admission;
mod blocks;
mod event;
mod queue;
mod sequence;
mod slots;
mod step;
mod stopping;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use proto::StepReply;

pub(crate) use event::{Event, SequenceEvent};
pub(crate) use sequence::{SequenceId, SequenceSpec};
pub use step::ReplyMismatch;
pub(crate) use step::{Phase, Step};
pub(crate) use stopping::FinishReason;

use blocks::BlockPool;
use queue::Queue;
use sequence::Running;
use slots::SlotPool;
use step::Outstanding;

/// What the shards offer and the user allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Most sequences that run at once, at most the number of slots of the shards.
    pub(crate) max_batch_size: u32,
    /// Most prompt tokens of one step; longer prompts are read in chunks.
    pub(crate) max_batch_prefill_tokens: u32,
    /// KV blocks of the shards.
    pub(crate) num_blocks: u32,
    /// Tokens per KV block.
    pub(crate) block_size_tokens: u32,
    /// Tokens that end a sequence.
    pub(crate) eos_token_ids: Vec<u32>,
}

/// A sequence that could never run under these limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a sequence of {num_blocks} KV blocks does not fit in {max_blocks}, or it has no token to read or to make")]
pub(crate) struct SubmitError {
    num_blocks: u32,
    max_blocks: u32,
}

/// How full everything is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    pub(crate) num_waiting: u32,
    pub(crate) num_running: u32,
    pub(crate) num_used_slots: u32,
    pub(crate) num_used_blocks: u32,
    pub(crate) num_blocks: u32,
}

/// The scheduler of one model.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    next_id: u64,
    waiting: Queue,
    /// By id, which is the order of arrival, so the oldest is served first.
    running: BTreeMap<SequenceId, Running>,
    slots: SlotPool,
    blocks: BlockPool,
    /// Slots whose rows have ended and whose shards have not been told.
    ended_slots: Vec<slots::SlotId>,
    outstanding: VecDeque<Outstanding>,
}

impl Scheduler {
    /// A scheduler with every slot and block free.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            slots: SlotPool::new(limits.max_batch_size),
            blocks: BlockPool::new(limits.num_blocks),
            limits,
            next_id: 0,
            waiting: Queue::default(),
            running: BTreeMap::new(),
            ended_slots: Vec::new(),
            outstanding: VecDeque::new(),
        }
    }

    /// Puts a sequence at the end of the queue.
    ///
    /// # Errors
    /// When it could never run.
    pub(crate) fn submit(&mut self, spec: SequenceSpec, now: Instant) -> Result<SequenceId, SubmitError> {
        let num_blocks = admission::num_blocks(&spec, self.limits.block_size_tokens);
        let has_work = !spec.prompt.is_empty() && spec.max_new_tokens > 0;
        if num_blocks > self.limits.num_blocks || !has_work {
            return Err(SubmitError { num_blocks, max_blocks: self.limits.num_blocks });
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.waiting.push(id, spec, now);
        Ok(id)
    }

    /// Ends a sequence whose reader wants no more of it. False when it has ended already.
    pub(crate) fn cancel(&mut self, id: SequenceId) -> bool {
        self.waiting.remove(id) || self.release(id)
    }

    /// The next step, or `None` when there is nothing to do: no sequence is alive and the shards know it, or all that
    /// can be done is under way. Its slots may contain ones it releases itself.
    pub(crate) fn schedule(&mut self, now: Instant) -> Option<Step> {
        let mut step = Step { releases: std::mem::take(&mut self.ended_slots), ..Step::default() };
        let mut prefill_budget_tokens = self.limits.max_batch_prefill_tokens;
        for (&id, sequence) in &mut self.running {
            sequence.join(id, &mut step, &mut prefill_budget_tokens);
        }
        self.admit(now, &mut step, prefill_budget_tokens);
        if step.phase().is_some() {
            self.outstanding.push_back(std::mem::take(&mut step.outstanding));
        }
        let is_empty = step.releases.is_empty() && step.phase().is_none();
        (!is_empty).then_some(step)
    }

    /// Takes the reply to the oldest step that has none. Finished sequences give back their slot and blocks.
    ///
    /// # Errors
    /// When the reply is not one to that step; nothing has changed then.
    pub(crate) fn apply(&mut self, reply: StepReply) -> Result<Vec<Event>, ReplyMismatch> {
        let outstanding = self.outstanding.front().ok_or(ReplyMismatch::NoStep)?;
        outstanding.check(&reply)?;
        let outstanding = self.outstanding.pop_front().ok_or(ReplyMismatch::NoStep)?;
        let mut events = Vec::with_capacity(reply.tokens.len());
        for (expected, logprobs) in outstanding.prompt_logprobs.iter().zip(reply.prompt_logprobs) {
            if self.running.contains_key(&expected.id) {
                events.push(Event { id: expected.id, kind: SequenceEvent::PromptLogprobs(logprobs.logprobs) });
            }
        }
        for (expected, token) in outstanding.tokens().zip(reply.tokens) {
            let Some(sequence) = self.running.get_mut(&expected.id) else {
                continue;
            };
            sequence.num_new_tokens += 1;
            let finish = stopping::after_token(sequence, token.token_id, &self.limits.eos_token_ids);
            if finish.is_some() {
                self.release(expected.id);
            }
            events.push(Event { id: expected.id, kind: SequenceEvent::Token { token, finish } });
        }
        Ok(events)
    }

    /// Ends every sequence, waiting or running, with one failure event each.
    pub(crate) fn fail_all(&mut self, message: &str) -> Vec<Event> {
        let running: Vec<SequenceId> = self.running.keys().copied().collect();
        for &id in &running {
            self.release(id);
        }
        let failed = |id| Event { id, kind: SequenceEvent::Failed(message.to_owned()) };
        running.into_iter().chain(self.waiting.drain()).map(failed).collect()
    }

    /// How full everything is.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            num_waiting: self.waiting.len(),
            num_running: u32::try_from(self.running.len()).unwrap_or(u32::MAX),
            num_used_slots: self.slots.num_taken(),
            num_used_blocks: self.blocks.num_taken(),
            num_blocks: self.limits.num_blocks,
        }
    }

    /// The one place where a running sequence gives back what it owns. Slot and blocks are free at once: the shards
    /// read commands in order, and the release goes out before any step that could reuse them.
    fn release(&mut self, id: SequenceId) -> bool {
        let Some(sequence) = self.running.remove(&id) else {
            return false;
        };
        self.blocks.release(sequence.blocks);
        self.slots.release(sequence.slot);
        self.ended_slots.push(sequence.slot);
        true
    }
}
