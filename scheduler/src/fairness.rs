//! Fair sharing of slots between tenants. When all slots are taken and a waiting tenant has fewer than its equal share,
//! the tenant with the most slots gives one up: its sequence that was admitted last goes back to the queue and reads
//! its tokens again later.
//!
//! So a tenant that is alone gets every slot, and a new tenant waits one step, not until the sequences of others end.

use std::collections::BTreeMap;

use crate::sequence::Sequence;
use crate::slot::SlotId;
use crate::step::Step;
use crate::{Scheduler, Tenant};

impl Scheduler {
    /// Frees a slot for a tenant that has too few, and moves that tenant's sequence to the front of the queue. Called
    /// before `step` has any row.
    pub(crate) fn share_slots(&mut self, step: &mut Step) {
        if self.rows.has_free() || !self.waiting.has_tenants() {
            return;
        }
        let mut held: BTreeMap<Tenant, u32> = self.waiting.iter().map(|sequence| (sequence.tenant, 0)).collect();
        for (_, running) in self.rows.iter() {
            *held.entry(running.sequence.tenant).or_default() += 1;
        }
        let part = (self.rows.len() / held.len().max(1) as u32).max(1);
        // A sequence that others have overtaken lacks blocks, so a slot would not help it.
        let needs_slot = |sequence: &Sequence| held[&sequence.tenant] < part && sequence.num_overtaken == 0;
        let Some(index) = self.waiting.iter().position(needs_slot) else { return };
        let Some(slot) = self.latest_of_most(&held).filter(|(_, most)| *most > part).map(|(slot, _)| slot) else {
            return;
        };
        if let (Some(waiting), Some(displaced)) = (self.waiting.take(index), self.release(slot)) {
            self.waiting.push(displaced);
            self.waiting.push_front(waiting);
            step.num_displaced += 1;
        }
    }

    /// For the tenant with the most slots, returns the slot of its sequence that was admitted last, and its number of
    /// slots.
    fn latest_of_most(&self, held: &BTreeMap<Tenant, u32>) -> Option<(SlotId, u32)> {
        let (tenant, most) = held.iter().max_by_key(|(_, count)| **count)?;
        let of_tenant = self.rows.iter().filter(|(_, running)| running.sequence.tenant == *tenant);
        of_tenant.last().map(|(slot, _)| (slot, *most))
    }
}
