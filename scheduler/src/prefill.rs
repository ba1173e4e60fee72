//! The sharing of a step's token budget between prompts. Together, prompts read at most `max_batch_prefill_tokens`
//! tokens, and no more than fit in a frame.
//!
//! The budget is given out in two rounds. In the first round, the prompt that was admitted first, of those with tokens
//! to read, gets at most half of the budget. The other running prompts come next, those with the fewest unread tokens
//! first, then prompts from the queue. Each gets at most half of the remaining budget, so that a long prompt does not
//! hold back short ones. In the second round, the rest of the budget goes to the same prompts in the same order, except
//! that the first prompt comes last.

use std::time::Instant;

use crate::frame_room::FrameRoom;
use crate::slot::SlotId;
use crate::{Scheduler, Step};

/// The chunk of a prompt that a step reads, from `start` on.
#[derive(Debug, Clone, Copy)]
struct Share {
    slot: SlotId,
    /// The position of the chunk's first token.
    start: u32,
}

impl Scheduler {
    /// Adds chunks of prompts to a step, and admits sequences from the queue.
    pub(crate) fn prefill(&mut self, now: Instant, step: &mut Step) {
        let mut rest = FrameRoom::max_read_tokens(&self.limits);
        let mut room = FrameRoom::new(&self.limits);
        let unread = self.rows.iter().map(|(slot, running)| (slot, running.num_unread(self.limits.block_size_tokens)));
        let mut reading: Vec<(SlotId, u32)> = unread.filter(|(_, num_unread)| *num_unread > 0).collect();
        let mut shares: Vec<Share> = Vec::new();
        if let Some((_, others)) = reading.split_first_mut() {
            others.sort_by_key(|(_, num_unread)| *num_unread);
        }
        for (slot, _) in reading {
            shares.extend(self.share(slot, rest.div_ceil(2), &mut rest));
        }
        // Nothing is admitted in a step that preempted a sequence: the preempted sequence could be admitted again at
        // once and again lack blocks.
        while rest > 0
            && step.num_preempted == 0
            && let Some(slot) = self.admit(now, step, &mut room)
        {
            shares.extend(self.share(slot, rest.div_ceil(2), &mut rest));
        }
        for share in shares.iter().skip(1).chain(shares.first()) {
            self.share(share.slot, rest, &mut rest);
        }
        for Share { slot, start } in shares {
            if let Some(running) = self.rows.get_mut(slot) {
                running.read(slot, start, step);
            }
        }
    }

    /// Gives a sequence at most `most` of the `rest` tokens. Returns `None` if the sequence gets no token.
    fn share(&mut self, slot: SlotId, most: u32, rest: &mut u32) -> Option<Share> {
        let running = self.rows.get_mut(slot)?;
        let num_tokens = running.num_unread(self.limits.block_size_tokens).min(most);
        *rest -= num_tokens;
        let start = running.plan(num_tokens, &mut self.pool);
        (num_tokens > 0).then_some(Share { slot, start })
    }
}
