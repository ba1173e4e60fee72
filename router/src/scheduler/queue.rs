//! Sequences that wait, in order of arrival; those that were preempted are in front.
//!
//! How many there can be is bounded by the permits of `generation` and of the batcher. Who may leave is decided in
//! `admission`.

use std::collections::VecDeque;

use super::SequenceId;
use super::sequence::Sequence;

/// First come, first served.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Sequence>,
}

impl Queue {
    /// Appends a sequence.
    pub(super) fn push(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Puts a sequence before all others.
    pub(super) fn push_front(&mut self, sequence: Sequence) {
        self.waiting.push_front(sequence);
    }

    pub(super) fn get(&self, index: usize) -> Option<&Sequence> {
        self.waiting.get(index)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Sequence> {
        self.waiting.get_mut(index)
    }

    /// The sequence of that name.
    pub(super) fn find_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        self.waiting.iter_mut().find(|sequence| sequence.id == id)
    }

    /// Takes the sequence at a place.
    pub(super) fn take(&mut self, index: usize) -> Option<Sequence> {
        self.waiting.remove(index)
    }

    /// Takes one out of the middle. False when it does not wait.
    pub(super) fn remove(&mut self, id: SequenceId) -> bool {
        let position = self.waiting.iter().position(|waiting| waiting.id == id);
        position.and_then(|position| self.waiting.remove(position)).is_some()
    }

    /// Takes those that are over.
    pub(super) fn take_where(&mut self, is_over: impl Fn(&Sequence) -> bool) -> Vec<Sequence> {
        let (over, waiting) = self.waiting.drain(..).partition(is_over);
        self.waiting = waiting;
        Vec::from(over)
    }

    /// Takes all, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Sequence> {
        self.waiting.drain(..)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.iter()
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }
}
