//! Admission: sequences leave the queue, mostly in its order, while a slot and KV blocks are left.
//!
//! An admitted sequence takes the blocks of all tokens that it has to read (with an attention window, only the blocks
//! of the tokens that it reads next: see `window`). While it generates tokens, it takes one more block at a time. One
//! block per running sequence stays in reserve, so that a new sequence is not preempted at once. Later sequences that
//! fit may overtake the first sequence for which there is no room, at most [`MAX_OVERTAKEN`] times. After that, all
//! later sequences wait until there is room for it. If another sequence reads the same tokens in this step, a sequence
//! that may use the prefix cache waits for the next step and then shares the blocks. A sequence whose prompt does not
//! fit in the rest of the step's frame ends the admissions of the step; the first sequence that a step admits always
//! fits. Sequences with masks also wait while the masks of running sequences fill the part of a frame that is meant for
//! masks.

use std::time::Instant;

use crate::frame_room::FrameRoom;
use crate::kv_pool::Prefix;
use crate::running::Running;
use crate::sequence::Sequence;
use crate::slot::{Admission, SlotId};
use crate::{Event, Limits, Scheduler, SequenceEvent, SequenceSpec, Step};

/// The maximum number of later sequences that overtake the first sequence for which there is no room.
pub(crate) const MAX_OVERTAKEN: u32 = 32;
/// The number of waiting sequences, from the front of the queue, that are considered for admission.
const LOOKAHEAD: usize = 64;

/// Returns the maximum number of KV blocks that a sequence needs at a time. The last generated token is never read, so
/// it needs no room.
pub(crate) fn most_blocks(spec: &SequenceSpec, limits: &Limits) -> u32 {
    let prompt_tokens = u32::try_from(spec.prompt.token_ids.len()).unwrap_or(u32::MAX);
    limits.most_blocks(prompt_tokens.saturating_add(spec.max_new_tokens).saturating_sub(1))
}

impl Scheduler {
    /// Admits the next sequence that fits, and returns its slot. Returns `None` if no sequence is admitted.
    pub(crate) fn admit(&mut self, now: Instant, step: &mut Step, room: &mut FrameRoom) -> Option<SlotId> {
        let (index, prefix, num_new) = self.choose(room)?;
        let mut sequence = self.waiting.take(index)?;
        let block_size = self.limits.block_size_tokens;
        room.take(&sequence, block_size);
        let num_cached = prefix.nodes.len() as u32 * block_size;
        let table = self.pool.open(prefix, num_new).expect("there is room for the sequence chosen");
        if !std::mem::replace(&mut sequence.was_admitted, true) {
            let waited = now.saturating_duration_since(sequence.since);
            let admitted = SequenceEvent::Admitted { waited, num_prompt_tokens: sequence.num_tokens(), num_cached };
            step.events.push(Event { id: sequence.id, kind: admitted });
        }
        sequence.num_overtaken = 0;
        let admission = Admission(self.next_admission);
        self.next_admission += 1;
        self.rows.insert(Running::new(sequence, admission, table, num_cached))
    }

    /// Returns the queue index of the sequence to admit, its cached prefix, and the number of blocks that the sequence
    /// needs in addition to the prefix.
    fn choose(&mut self, room: &FrameRoom) -> Option<(usize, Prefix, u32)> {
        // One block per running sequence stays in reserve.
        let reserve = self.rows.len();
        if !self.rows.has_free() || self.pool.num_available() <= reserve {
            return None;
        }
        let mut blocked = None;
        let max_masked = FrameRoom::max_masked(&self.limits, self.mask_bytes);
        for index in 0..LOOKAHEAD {
            let sequence = self.waiting.get(index)?;
            // A sequence that does not fit in this step's frame is not overtaken.
            if !room.has_room(sequence, self.limits.block_size_tokens) {
                return None;
            }
            if sequence.is_masked() && self.rows.num_masked() >= max_masked {
                continue;
            }
            let is_blocked = sequence.blocked_since == Some(self.pool.num_returns());
            // The last token is always read, because the next one is computed from it.
            let num_readable = sequence.num_tokens() - 1;
            let Sequence { scope, tokens, .. } = sequence;
            let is_alone = is_blocked || sequence.wants().reads_all();
            let mut prefix =
                if is_alone { Prefix::nothing(*scope) } else { self.pool.lookup(*scope, tokens, num_readable) };
            if prefix.is_being_read {
                continue;
            }
            let num_cached = prefix.nodes.len() as u32 * self.limits.block_size_tokens;
            prefix.num_dead = self.limits.num_dead_blocks(num_cached);
            let reach = self.limits.reach(num_cached, sequence.num_tokens());
            let num_new = reach.div_ceil(self.limits.block_size_tokens) - prefix.nodes.len() as u32;
            if !is_blocked && num_new.saturating_add(reserve) <= self.pool.num_available_beside(&prefix) {
                if let Some(blocked) = blocked {
                    self.waiting.get_mut(blocked)?.num_overtaken += 1;
                }
                return Some((index, prefix, num_new));
            }
            let num_returns = self.pool.num_returns();
            self.waiting.get_mut(index)?.blocked_since = Some(num_returns);
            let blocked = *blocked.get_or_insert(index);
            if self.waiting.get(blocked)?.num_overtaken >= MAX_OVERTAKEN {
                return None;
            }
        }
        None
    }
}
