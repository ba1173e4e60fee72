//! Who may leave the queue for this step: strictly in order of arrival, while a slot, KV blocks and prompt budget are
//! left. A sequence takes every block it can ever need when it is admitted, so a running one never lacks memory. The
//! head of the queue blocks those behind it, so nobody starves.

use std::time::Instant;

use super::sequence::Running;
use super::{Event, Scheduler, SequenceEvent, SequenceSpec, Step};

/// Blocks for the prompt and the completion. The last token made is never read again and needs no place.
pub(super) fn num_blocks(spec: &SequenceSpec, block_size_tokens: u32) -> u32 {
    let prompt_tokens = u32::try_from(spec.prompt.len()).unwrap_or(u32::MAX);
    let kv_tokens = prompt_tokens.saturating_add(spec.max_new_tokens).saturating_sub(1);
    kv_tokens.div_ceil(block_size_tokens)
}

impl Scheduler {
    pub(super) fn admit(&mut self, now: Instant, step: &mut Step, mut prefill_budget_tokens: u32) {
        while prefill_budget_tokens > 0 && self.slots.has_free() {
            let Some(head) = self.waiting.front() else { return };
            let num_blocks = num_blocks(&head.spec, self.limits.block_size_tokens);
            let Some(blocks) = self.blocks.take(num_blocks) else {
                return;
            };
            let head = self.waiting.pop().expect("the queue has a front");
            let slot = self.slots.take().expect("a slot is free");
            let waited = now.saturating_duration_since(head.since);
            step.events.push(Event { id: head.id, kind: SequenceEvent::Admitted { waited } });
            let mut sequence = Running::new(head.spec, slot, blocks);
            sequence.join(head.id, step, &mut prefill_budget_tokens);
            self.running.insert(head.id, sequence);
        }
    }
}
