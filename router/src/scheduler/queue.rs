//! Sequences that wait, in order of arrival.
//!
//! How many there can be is bounded by the permits of `generation`. Who may leave is decided in `admission`.

use std::collections::VecDeque;
use std::time::Instant;

use super::{SequenceId, SequenceSpec};

/// A sequence that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) id: SequenceId,
    pub(super) spec: SequenceSpec,
    pub(super) since: Instant,
}

/// First come, first served.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
}

impl Queue {
    /// Appends a sequence.
    pub(super) fn push(&mut self, id: SequenceId, spec: SequenceSpec, since: Instant) {
        self.waiting.push_back(Waiting { id, spec, since });
    }

    /// The sequence that waits longest.
    pub(super) fn front(&self) -> Option<&Waiting> {
        self.waiting.front()
    }

    /// Takes the sequence that waits longest.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.waiting.pop_front()
    }

    /// Takes one out of the middle. False when it does not wait.
    pub(super) fn remove(&mut self, id: SequenceId) -> bool {
        let position = self.waiting.iter().position(|waiting| waiting.id == id);
        position.and_then(|position| self.waiting.remove(position)).is_some()
    }

    /// Takes all, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = SequenceId> {
        self.waiting.drain(..).map(|waiting| waiting.id)
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }
}
