//! Slots, which are the numbered places of a batch, and admissions, which number the sequences that were put into
//! slots.

/// The number of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SlotId(pub(crate) u32);

/// The number of an admission. A sequence that is preempted and admitted again has a new number, so replies to steps of
/// its earlier admission can be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission(pub(crate) u64);
