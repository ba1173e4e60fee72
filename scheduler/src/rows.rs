//! The running sequences, by slot and in the order of admission.

use crate::SequenceId;
use crate::running::Running;
use crate::slot::{Admission, SlotId};

/// All slots, and the sequences that run in them.
#[derive(Debug)]
pub(crate) struct Rows {
    by_slot: Vec<Option<Running>>,
    free: Vec<SlotId>,
    /// The slots of the running sequences, in the order of admission.
    in_order: Vec<SlotId>,
}

impl Rows {
    /// Creates the slots `0..num_slots`, all free.
    pub(crate) fn new(num_slots: u32) -> Self {
        Self {
            by_slot: (0..num_slots).map(|_| None).collect(),
            free: (0..num_slots).rev().map(SlotId).collect(),
            in_order: Vec::new(),
        }
    }

    /// True if a slot is free.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// The number of running sequences.
    pub(crate) fn len(&self) -> u32 {
        // The length is at most `num_slots`, which is a u32.
        self.in_order.len() as u32
    }

    /// The number of running sequences whose tokens need masks.
    pub(crate) fn num_masked(&self) -> usize {
        self.iter().filter(|(_, running)| running.sequence.is_masked()).count()
    }

    /// Puts a sequence into a free slot, and returns the slot. If no slot is free, drops the sequence and returns
    /// `None`.
    pub(crate) fn insert(&mut self, running: Running) -> Option<SlotId> {
        let slot = self.free.pop()?;
        self.by_slot[slot.0 as usize] = Some(running);
        self.in_order.push(slot);
        Some(slot)
    }

    /// Removes a sequence from its slot. Returns `None` if the slot is free.
    pub(crate) fn remove(&mut self, slot: SlotId) -> Option<Running> {
        let running = self.by_slot[slot.0 as usize].take()?;
        self.in_order.retain(|other| *other != slot);
        self.free.push(slot);
        Some(running)
    }

    /// Returns the slot at an index in the order of admission.
    pub(crate) fn slot_at(&self, place: usize) -> Option<SlotId> {
        self.in_order.get(place).copied()
    }

    /// Returns the slot of the sequence that was admitted last.
    pub(crate) fn latest(&self) -> Option<SlotId> {
        self.in_order.last().copied()
    }

    pub(crate) fn get(&self, slot: SlotId) -> Option<&Running> {
        self.by_slot[slot.0 as usize].as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: SlotId) -> Option<&mut Running> {
        self.by_slot[slot.0 as usize].as_mut()
    }

    /// Returns the sequence in a slot, if it is still the sequence of this admission.
    pub(crate) fn admitted(&mut self, slot: SlotId, admission: Admission) -> Option<&mut Running> {
        self.get_mut(slot).filter(|running| running.admission == admission)
    }

    /// Iterates over the running sequences in the order of their slots.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Running> {
        self.by_slot.iter_mut().flatten()
    }

    /// Iterates over the running sequences in the order of admission.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlotId, &Running)> {
        self.in_order.iter().filter_map(|slot| Some((*slot, self.by_slot[slot.0 as usize].as_ref()?)))
    }

    /// Returns the slot of a sequence, or `None` if the sequence does not run.
    pub(crate) fn slot_of(&self, id: SequenceId) -> Option<SlotId> {
        self.iter().find(|(_, running)| running.sequence.id == id).map(|(slot, _)| slot)
    }
}
