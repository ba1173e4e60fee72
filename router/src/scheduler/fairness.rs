//! Slots between tenants. Where all are taken and a tenant waits that has less than its equal part of them, the tenant that has the most
//! gives one up: the sequence of it that was admitted last goes back to the queue, keeps its tokens, and reads them again later.
//!
//! So a tenant that is alone has every slot, and one that comes waits for a step and not for the others' answers.

use std::collections::BTreeMap;

use super::Scheduler;
use super::rows::SlotId;
use super::step::Step;
use crate::tenant::Tenant;

impl Scheduler {
    /// Frees a slot for a tenant that has too few, and puts its sequence to the front. Before any row is in `step`.
    pub(super) fn share_slots(&mut self, step: &mut Step) {
        if self.rows.has_free() || !self.waiting.has_tenants() {
            return;
        }
        let mut held: BTreeMap<Tenant, u32> = self.waiting.iter().map(|sequence| (sequence.tenant, 0)).collect();
        for (_, running) in self.rows.iter() {
            *held.entry(running.sequence.tenant).or_default() += 1;
        }
        let part = (self.rows.len() / held.len().max(1) as u32).max(1);
        let Some((index, _)) = self.waiting.iter().enumerate().find(|(_, sequence)| held[&sequence.tenant] < part)
        else {
            return;
        };
        let Some(slot) = self.latest_of_most(&held).filter(|(_, most)| *most > part).map(|(slot, _)| slot) else {
            return;
        };
        if let (Some(waiting), Some(displaced)) = (self.waiting.take(index), self.release(slot)) {
            self.waiting.push(displaced);
            self.waiting.push_front(waiting);
            step.num_displaced += 1;
        }
    }

    /// The slot of the sequence that was admitted last of the tenant that has the most, and how many it has.
    fn latest_of_most(&self, held: &BTreeMap<Tenant, u32>) -> Option<(SlotId, u32)> {
        let (tenant, most) = held.iter().max_by_key(|(_, count)| **count)?;
        let of_tenant = self.rows.iter().filter(|(_, running)| running.sequence.tenant == *tenant);
        of_tenant.last().map(|(slot, _)| (slot, *most))
    }
}
