//! The numbered places in the batch. Each is free or belongs to one running sequence.
//!
//! What a slot holds (a block table, a history of tokens, sampling parameters) is with the shards.

/// A place in the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SlotId(pub(crate) u32);

/// All slots.
#[derive(Debug)]
pub(super) struct SlotPool {
    free: Vec<SlotId>,
    is_taken: Vec<bool>,
}

impl SlotPool {
    /// Slots `0..num_slots`, all free.
    pub(super) fn new(num_slots: u32) -> Self {
        Self { free: (0..num_slots).rev().map(SlotId).collect(), is_taken: vec![false; num_slots as usize] }
    }

    /// Takes a free slot.
    pub(super) fn take(&mut self) -> Option<SlotId> {
        let slot = self.free.pop()?;
        self.is_taken[slot.0 as usize] = true;
        Some(slot)
    }

    /// Gives a slot back. Giving it back twice is a defect and panics, before two sequences share it.
    pub(super) fn release(&mut self, slot: SlotId) {
        let was_taken = std::mem::replace(&mut self.is_taken[slot.0 as usize], false);
        assert!(was_taken, "slot {} released twice", slot.0);
        self.free.push(slot);
    }

    /// Whether [`take`](Self::take) would find one.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Slots that belong to a sequence.
    pub(super) fn num_taken(&self) -> u32 {
        u32::try_from(self.is_taken.len() - self.free.len()).unwrap_or(u32::MAX)
    }
}
