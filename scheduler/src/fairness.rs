//! Fair sharing of slots between tenants. When all slots are taken, a waiting tenant has fewer than its equal share and
//! another tenant has more, the tenant with the most slots gives one up: the sequence of that tenant that was admitted
//! last goes back to the queue and is continued later. A sequence whose `num_overtaken` is above 0 does not count as
//! waiting here.
//!
//! So a tenant that is alone can use every slot. If only slots are scarce, and there are no more tenants than slots, a
//! new tenant need not wait until a sequence of another tenant ends.

use std::collections::BTreeMap;

use crate::sequence::Sequence;
use crate::slot::SlotId;
use crate::step::Step;
use crate::{Scheduler, Tenant};

impl Scheduler {
    /// If no slot is free, a waiting tenant has fewer slots than its share and another tenant has more, takes a slot
    /// from the tenant with the most slots and moves a sequence of the waiting tenant to the front of the queue. Must
    /// be called before `step` has any row.
    pub(crate) fn share_slots(&mut self, step: &mut Step) {
        if self.rows.has_free() || !self.waiting.has_tenants() {
            return;
        }
        let mut held: BTreeMap<Tenant, u32> = self.waiting.iter().map(|sequence| (sequence.tenant, 0)).collect();
        for (_, running) in self.rows.iter() {
            *held.entry(running.sequence.tenant).or_default() += 1;
        }
        let part = (self.rows.len() / held.len().max(1) as u32).max(1);
        // A sequence that other sequences have overtaken lacked blocks, so a slot alone would not help it.
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

    /// For the tenant with the most slots, returns the slot of the tenant's sequence that was admitted last, and the
    /// tenant's number of slots.
    fn latest_of_most(&self, held: &BTreeMap<Tenant, u32>) -> Option<(SlotId, u32)> {
        let (tenant, most) = held.iter().max_by_key(|(_, count)| **count)?;
        let of_tenant = self.rows.iter().filter(|(_, running)| running.sequence.tenant == *tenant);
        of_tenant.last().map(|(slot, _)| (slot, *most))
    }
}
