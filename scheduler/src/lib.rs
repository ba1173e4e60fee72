//! The scheduler, which decides which sequences run in which step. It is a plain value that does no I/O. Six methods
//! change it: `submit`, `cancel`, `set_mask`, `schedule`, `apply` and `fail_all`. If `record_block_events` was called,
//! `take_block_events` returns their changes of the prefix cache.
//!
//! The scheduler owns the waiting queue, the running sequences, the slots and the KV blocks. Sequences can join and
//! leave at every step. A step may mix rows that read prompts with rows that generate tokens. `schedule` records the
//! writes of a step before its reply has come, so it may be called again while steps are under way. `apply` takes the
//! replies in order, and drops the parts of a reply whose sequences have left their slots meanwhile. The crate reads no
//! clock (the time is an argument), opens no socket, takes no lock and has no async code.
//!
//! Decode rows come first: each running sequence that has read its prompt gets a decode row in every step until its
//! last token is scheduled, unless it waits for a mask. When no block is left for a running sequence, the sequence
//! admitted last goes back to the front of the queue. It keeps the tokens whose replies have come, and later reads
//! those that are no longer in the prefix cache again. Prompts share the rest of the step (`prefill`), whose length
//! follows from the measured times of steps (`pace`). `admission` says which sequences leave the queue. Tenants take
//! turns in the queue (`queue`) and share the slots (`fairness`). With an attention window, a sequence gives up the
//! blocks before its window (`window`).

#![forbid(unsafe_code)]

mod admission;
mod block_events;
mod event;
mod failure;
mod fairness;
mod frame_room;
mod kv_pool;
mod limits;
mod pace;
mod prefill;
mod prefix_tree;
mod prompt;
mod queue;
mod reply_mismatch;
mod rows;
mod running;
mod sequence;
mod slot;
mod step;
mod stopping;
mod tenant;
#[cfg(test)]
mod tests;
mod tokens;
mod wants;
mod window;

use std::collections::VecDeque;
use std::time::Instant;

use proto::{RowReply, StepReply};

pub use block_events::{BlockEvent, BlockHash};
pub use event::{Event, SequenceEvent};
pub use limits::Limits;
pub use pace::{Pace, Work};
pub use prompt::{PrefixScope, Prompt, ScopeParts};
pub use reply_mismatch::ReplyMismatch;
pub use sequence::{SequenceId, SequenceSpec};
pub use step::{Phase, Step};
pub use stopping::TokenFinish;
pub use tenant::Tenant;
pub use wants::{PromptReport, PromptWants};

use kv_pool::KvPool;
use queue::Queue;
use rows::Rows;
use running::Running;
use sequence::Sequence;
use slot::SlotId;
use step::{Expected, Outstanding};

/// The error for a sequence that could never run under these limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the sequence cannot run, which is a defect of this server: it must have a token to read, a token to generate, and \
     at most {max_blocks} KV blocks. Given: {num_blocks} blocks"
)]
pub struct SubmitError {
    num_blocks: u32,
    max_blocks: u32,
}

/// The numbers of sequences, and of KV blocks by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Sequences in the queue.
    pub num_waiting: u32,
    /// Sequences in slots.
    pub num_running: u32,
    /// Blocks that running sequences own or share.
    pub num_used_blocks: u32,
    /// Blocks that only the prefix cache holds. A sequence that needs a block can take one of them.
    pub num_cached_blocks: u32,
    /// The number of all KV blocks, the same on every shard.
    pub num_blocks: u32,
}

/// The scheduler of one model.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    next_id: u64,
    next_admission: u64,
    waiting: Queue,
    rows: Rows,
    pool: KvPool,
    /// Slots that sequences have left. The next step tells the shards to release them.
    ended_slots: Vec<SlotId>,
    outstanding: VecDeque<Outstanding>,
    /// The earliest deadline of the sequences that have not ended, or an earlier one of a sequence that has.
    next_deadline: Option<Instant>,
    /// The size of the largest mask so far, in bytes.
    mask_bytes: usize,
}

impl Scheduler {
    /// Creates a scheduler whose slots and blocks are all free.
    pub fn new(limits: Limits) -> Self {
        Self {
            rows: Rows::new(limits.max_batch_size),
            pool: KvPool::new(limits.num_blocks, limits.block_size_tokens, limits.caches_prefixes),
            limits,
            next_id: 0,
            next_admission: 0,
            waiting: Queue::default(),
            ended_slots: Vec::new(),
            outstanding: VecDeque::new(),
            next_deadline: None,
            mask_bytes: 0,
        }
    }

    /// Records changes of the prefix cache from now on, for [`Scheduler::take_block_events`]. Must be called before the
    /// first step.
    pub fn record_block_events(&mut self) {
        self.pool.record_events();
    }

    /// Returns the changes of the prefix cache since the last call, in order.
    pub fn take_block_events(&mut self) -> Vec<BlockEvent> {
        self.pool.take_events()
    }

    /// Puts a sequence into the queue, and returns its id.
    ///
    /// # Errors
    /// When the sequence needs more blocks than the KV cache has, has an empty prompt, or may generate no token.
    pub fn submit(&mut self, spec: SequenceSpec, now: Instant) -> Result<SequenceId, SubmitError> {
        let num_blocks = admission::most_blocks(&spec, &self.limits);
        let has_work = !spec.prompt.token_ids.is_empty() && spec.max_new_tokens > 0;
        if num_blocks > self.limits.num_blocks || !has_work {
            return Err(SubmitError { num_blocks, max_blocks: self.limits.num_blocks });
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.next_deadline = self.next_deadline.into_iter().chain(spec.deadline).min();
        self.waiting.push(Sequence::new(id, spec, now));
        Ok(id)
    }

    /// Ends a sequence whose reader wants no more tokens. Returns false if the sequence has ended already.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        self.waiting.remove(id) || self.rows.slot_of(id).is_some_and(|slot| self.release(slot).is_some())
    }

    /// Sets the mask of the next token of a sequence: bit i % 8 of byte i / 8 allows token i. Returns false if the
    /// sequence has ended, needs no masks or already has a mask for its next token.
    pub fn set_mask(&mut self, id: SequenceId, mask: Vec<u8>) -> bool {
        self.mask_bytes = self.mask_bytes.max(mask.len());
        let running = self.rows.slot_of(id).and_then(|slot| self.rows.get_mut(slot));
        match running {
            Some(running) => running.sequence.set_mask(mask),
            None => self.waiting.find_mut(id).is_some_and(|sequence| sequence.set_mask(mask)),
        }
    }

    /// Returns the next step, or `None` if that step would have no rows, no releases and no events. A step may reuse
    /// slots that it releases itself. `pace` says how many prompt tokens the step may read.
    pub fn schedule(&mut self, now: Instant, pace: &Pace) -> Option<Step> {
        let mut step = Step::with_capacity(self.rows.len() as usize);
        self.pool.begin_step();
        self.drop_dead_blocks();
        self.expire(now, &mut step);
        self.share_slots(&mut step);
        self.decode(&mut step);
        self.prefill(now, pace, &mut step);
        step.releases = std::mem::take(&mut self.ended_slots);
        if step.phase().is_some() {
            self.outstanding.push_back(std::mem::take(&mut step.outstanding));
        }
        let is_empty = step.releases.is_empty() && step.events.is_empty() && step.phase().is_none();
        (!is_empty).then_some(step)
    }

    /// Applies the reply to the oldest step with rows that has no reply yet, and returns the events. Sequences that
    /// finish or fail give up their slots and blocks.
    ///
    /// # Errors
    /// When there is no such step, or the reply does not match it. In both cases nothing changes.
    pub fn apply(&mut self, reply: StepReply) -> Result<Vec<Event>, ReplyMismatch> {
        let outstanding = self.outstanding.front().ok_or(ReplyMismatch::NoStep)?;
        outstanding.check(&reply)?;
        let outstanding = self.outstanding.pop_front().ok_or(ReplyMismatch::NoStep)?;
        let mut events = Vec::with_capacity(reply.rows.len());
        // Failures come first, so that blocks that must no longer be found are hidden in the prefix cache before other
        // sequences add theirs.
        let answers = outstanding.rows.iter().zip(&reply.rows);
        for (expected, reply) in answers.filter(|(_, reply)| reply.failure.is_some()) {
            events.extend(self.fail(reply.failure(), expected));
        }
        for (expected, reply) in outstanding.rows.iter().zip(reply.rows) {
            self.take(expected, reply, &mut events);
        }
        Ok(events)
    }

    /// Applies a row's part of the reply. If the row's sequence has left its slot, the part is dropped.
    fn take(&mut self, expected: &Expected, mut reply: RowReply, events: &mut Vec<Event>) {
        let Some(running) = self.rows.admitted(expected.slot, expected.admission) else { return };
        let id = running.sequence.id;
        let report = expected.report.as_ref().map(|expected| running.sequence.report(expected, &mut reply));
        if let Some(report) = report.filter(|report| !report.is_empty()) {
            events.push(Event { id, kind: SequenceEvent::Prompt(report) });
        }
        let Some(token) = reply.token else { return };
        running.sequence.push_token(token.token_id);
        let finish = stopping::after_token(&running.sequence, token.token_id, &self.limits.eos_token_ids);
        if finish.is_some() {
            self.release(expected.slot);
        } else {
            running.cache(&mut self.pool);
        }
        events.push(Event { id, kind: SequenceEvent::Token { token, finish } });
    }

    /// Ends every waiting or running sequence with one failure event.
    pub fn fail_all(&mut self, message: &str) -> Vec<Event> {
        let mut ids = Vec::new();
        while let Some(running) = self.rows.slot_at(0).and_then(|slot| self.release(slot)) {
            ids.push(running.id);
        }
        ids.extend(self.waiting.drain().map(|sequence| sequence.id));
        ids.into_iter().map(|id| Event { id, kind: SequenceEvent::Failed(message.to_owned()) }).collect()
    }

    /// Returns the numbers of sequences, and of KV blocks by use.
    pub fn usage(&self) -> Usage {
        Usage {
            num_waiting: self.waiting.len(),
            num_running: self.rows.len(),
            num_used_blocks: self.pool.num_used(),
            num_cached_blocks: self.pool.num_idle(),
            num_blocks: self.limits.num_blocks,
        }
    }

    /// Ends the sequences whose deadlines have passed, and adds their events to `step`.
    fn expire(&mut self, now: Instant, step: &mut Step) {
        if self.next_deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        let is_over = |sequence: &Sequence| sequence.deadline.is_some_and(|deadline| deadline <= now);
        let running = self.rows.iter().filter(|(_, running)| is_over(&running.sequence));
        let slots: Vec<SlotId> = running.map(|(slot, _)| slot).collect();
        let mut ended: Vec<Sequence> = slots.into_iter().filter_map(|slot| self.release(slot)).collect();
        ended.extend(self.waiting.take_where(is_over));
        step.events.extend(ended.into_iter().map(|sequence| Event { id: sequence.id, kind: SequenceEvent::TimedOut }));
        let running = self.rows.iter().filter_map(|(_, running)| running.sequence.deadline);
        self.next_deadline = running.chain(self.waiting.iter().filter_map(|sequence| sequence.deadline)).min();
    }

    /// Adds a row for every sequence that has read its prompt and can generate a token, and takes blocks for all
    /// running sequences. Sequences are preempted if there are not enough blocks.
    fn decode(&mut self, step: &mut Step) {
        let mut place = 0;
        while let Some(slot) = self.rows.slot_at(place) {
            let Some(running) = self.rows.get_mut(slot) else { break };
            if !running.grow(&mut self.pool, &self.limits) {
                // The sequence admitted last may be this sequence itself. It is never the sequence admitted first,
                // because that one fits when it is alone.
                self.preempt_latest(step);
                continue;
            }
            if running.is_decoding() {
                running.decode(slot, step);
            }
            place += 1;
        }
    }

    /// Makes the running sequences give up the blocks before their windows.
    fn drop_dead_blocks(&mut self) {
        if self.limits.window.is_some() {
            self.rows.iter_mut().for_each(|running| running.drop_dead_blocks(&mut self.pool, &self.limits));
        }
    }

    /// Puts the sequence that was admitted last back at the front of the queue. That sequence has no row in `step` yet,
    /// because rows join in the order of admission.
    fn preempt_latest(&mut self, step: &mut Step) {
        let sequence = self.rows.latest().and_then(|slot| self.release(slot));
        self.waiting.push_front(sequence.expect("a sequence runs that needs a block"));
        step.num_preempted += 1;
    }

    /// Removes a sequence from its slot and returns it. Before that, `Running::cache` puts its full blocks into the
    /// prefix cache.
    fn release(&mut self, slot: SlotId) -> Option<Sequence> {
        let mut running = self.rows.remove(slot)?;
        running.cache(&mut self.pool);
        Some(self.give_back(slot, running))
    }

    /// Frees the blocks of a sequence that was removed from its slot, and returns the sequence. Slot and blocks may be
    /// reused at once, because the shards read commands in order and the release of the slot is sent before any step
    /// that could reuse them.
    fn give_back(&mut self, slot: SlotId, running: Running) -> Sequence {
        let is_open = running.is_open();
        self.pool.close(running.table);
        self.ended_slots.extend(is_open.then_some(slot));
        running.sequence
    }
}
