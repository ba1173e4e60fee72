//! The sharing of a step's prompt part. Together, prompts read at most `max_batch_prefill_tokens` tokens, no more than
//! fit in a frame, and no more than the pace allows ([`Budget`]), unless a prompt is alone.
//!
//! The budget is given out in two rounds. In the first round, the prompt that was admitted first, of those with tokens
//! to read, gets at most half of the budget, or all that it needs if nothing decodes and the budget suffices. The other
//! running prompts come next: tenants take turns, and each tenant's prompts with the fewest unread tokens come first.
//! Then come prompts from the queue. Each gets at most half of the remaining budget, so that a long prompt does not
//! hold back short ones. In the second round, the rest of the budget goes to the same prompts in the same order, except
//! that the first prompt comes last.
//!
//! A tenant that has a waiting sequence but reads no prompt has one admitted before the budget is given out, because
//! the prompts of other tenants could use up the budget of every step.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::frame_room::FrameRoom;
use crate::pace::{Budget, Chunk, Part};
use crate::slot::SlotId;
use crate::{Pace, Scheduler, Step, Tenant};

/// A prompt with tokens to read, and the chunk of it that the step reads.
#[derive(Debug, Clone, Copy)]
struct Reader {
    slot: SlotId,
    tenant: Tenant,
    chunk: Chunk,
    num_unread: u32,
}

impl Scheduler {
    /// Adds chunks of prompts to a step, and admits sequences from the queue.
    pub(crate) fn prefill(&mut self, now: Instant, pace: &Pace, step: &mut Step) {
        let mut room = FrameRoom::new(&self.limits);
        let mut readers = self.readers();
        let is_decoding = readers.len() < self.rows.len() as usize;
        // Nothing is admitted in a step that preempted a sequence: the preempted sequence could be admitted again at
        // once and again lack blocks.
        let may_admit = step.num_preempted == 0;
        if may_admit {
            self.admit_new_tenants(&mut readers, now, step, &mut room);
        }
        sort_by_turns(&mut readers);
        let is_alone = !is_decoding && readers.len() + self.waiting.len() as usize == 1;
        let mut budget = Budget::new(pace, FrameRoom::max_read_tokens(&self.limits));
        if !is_alone {
            budget.limit_time(&step.work, &readers.first().map_or_else(Chunk::default, |first| first.chunk));
        }
        for (index, reader) in readers.iter_mut().enumerate() {
            let part = if is_decoding || index > 0 { Part::Half } else { Part::AllOrHalf };
            self.read(reader, part, &mut budget);
        }
        while !budget.is_empty()
            && may_admit
            && let Some(mut reader) = self.admit(now, step, &mut room).and_then(|slot| self.reader(slot))
        {
            let part = if is_decoding || !readers.is_empty() { Part::Half } else { Part::AllOrHalf };
            self.read(&mut reader, part, &mut budget);
            readers.push(reader);
        }
        if let Some((first, others)) = readers.split_first_mut() {
            for reader in others.iter_mut().chain([first]) {
                self.read(reader, Part::Rest, &mut budget);
            }
        }
        for Reader { slot, chunk, .. } in readers.into_iter().filter(|reader| reader.chunk.num_tokens > 0) {
            if let Some(running) = self.rows.get_mut(slot) {
                running.read(slot, chunk.start, step);
                step.work.add_chunk(chunk, pace);
            }
        }
    }

    /// Admits one sequence of each tenant that has waiting sequences and reads no prompt, as far as there is room, and
    /// adds it to `readers`. If nobody reads, tenants take turns in the queue anyway.
    fn admit_new_tenants(&mut self, readers: &mut Vec<Reader>, now: Instant, step: &mut Step, room: &mut FrameRoom) {
        while !readers.is_empty() && self.waiting.has_tenants() {
            let is_new = |tenant: Tenant| readers.iter().all(|reader| reader.tenant != tenant);
            let found = self.waiting.bring_forward(is_new);
            let admitted = found.then(|| self.admit(now, step, room)).flatten();
            let Some(reader) = admitted.and_then(|slot| self.reader(slot)) else { break };
            // If the sequence that is meant cannot be admitted now, the next one of another tenant was.
            let is_meant = readers.iter().all(|other| other.tenant != reader.tenant);
            readers.push(reader);
            if !is_meant {
                break;
            }
        }
    }

    /// Returns the running prompts with tokens to read, in the order of admission.
    fn readers(&self) -> Vec<Reader> {
        let readers = self.rows.iter().filter_map(|(slot, _)| self.reader(slot));
        readers.filter(|reader| reader.num_unread > 0).collect()
    }

    /// Returns the prompt of a running sequence, with an empty chunk.
    fn reader(&self, slot: SlotId) -> Option<Reader> {
        let running = self.rows.get(slot)?;
        let num_unread = running.num_unread(self.limits.block_size_tokens);
        Some(Reader { slot, tenant: running.sequence.tenant, chunk: running.empty_chunk(), num_unread })
    }

    /// Adds tokens to a chunk, as many as fit into a part of the budget.
    fn read(&mut self, reader: &mut Reader, part: Part, budget: &mut Budget<'_>) {
        let num_tokens = budget.take(&reader.chunk, reader.num_unread, part);
        if let Some(running) = self.rows.get_mut(reader.slot) {
            running.plan(num_tokens, &mut self.pool);
        }
        reader.chunk.num_tokens += num_tokens;
        reader.num_unread -= num_tokens;
    }
}

/// Sorts all readers but the first. Tenants take turns, and each tenant's prompts with the fewest unread tokens come
/// first. The first reader is its tenant's first turn.
fn sort_by_turns(readers: &mut [Reader]) {
    let Some((first, others)) = readers.split_first_mut() else { return };
    others.sort_by_key(|reader| reader.num_unread);
    let mut num_turns = BTreeMap::from([(first.tenant, 1)]);
    others.sort_by_cached_key(|reader| {
        let turn = num_turns.entry(reader.tenant).or_insert(0);
        *turn += 1;
        *turn
    });
}
