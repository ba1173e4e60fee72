//! Slots, the numbered places of a batch, and the numbers of admissions to them.

/// The number of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SlotId(pub(crate) u32);

/// The number of an admission. Tokens under way for a preempted sequence do not count after it is admitted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission(pub(crate) u64);
