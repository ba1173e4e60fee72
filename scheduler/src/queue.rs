//! The queue of waiting sequences. Tenants take turns; the sequences of one tenant are in the order in which they
//! entered the queue. Preempted sequences go to the front.
//!
//! Tenants take turns by fair queuing (Demers, Keshav and Shenker, 1989): turns are numbered, and a sequence gets the
//! turn after that of its tenant's previous sequence, but never a turn that has passed. So a tenant with many sequences
//! delays mostly its own.
//!
//! `admission` decides which sequences are admitted.

use std::collections::{HashMap, VecDeque};

use crate::sequence::Sequence;
use crate::{SequenceId, Tenant};

/// The waiting sequences: those put at the front (preempted, or next by fair sharing), then the others in the order of
/// their turns.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Sequence>,
    /// The latest turn that has passed: the latest one of the sequences that `take` returned.
    turn: u64,
    /// The turn of each tenant's last sequence.
    last_turns: HashMap<Tenant, u64>,
}

impl Queue {
    /// Gives a sequence its turn, and inserts it after the sequences whose turn is not later.
    pub(crate) fn push(&mut self, mut sequence: Sequence) {
        let last_turn = self.last_turns.entry(sequence.tenant).or_default();
        sequence.turn = self.turn.max(*last_turn) + 1;
        *last_turn = sequence.turn;
        let is_later = |waiting: &&Sequence| waiting.turn > sequence.turn;
        let num_later = self.waiting.iter().rev().take_while(is_later).count();
        self.waiting.insert(self.waiting.len() - num_later, sequence);
    }

    /// Puts a sequence at the front of the queue.
    pub(crate) fn push_front(&mut self, sequence: Sequence) {
        self.waiting.push_front(sequence);
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Sequence> {
        self.waiting.get(index)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Sequence> {
        self.waiting.get_mut(index)
    }

    /// Returns the sequence with this id.
    pub(crate) fn find_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        self.waiting.iter_mut().find(|sequence| sequence.id == id)
    }

    /// Moves the first sequence of a tenant for which `is_meant` is true forward: to the front, or behind the last
    /// sequence before it that others have overtaken. Returns false if there is no such sequence. A sequence that
    /// others have overtaken lacks blocks: it stays in its place, and `admission` counts those that overtake it.
    pub(crate) fn bring_forward(&mut self, is_meant: impl Fn(Tenant) -> bool) -> bool {
        let is_meant = |sequence: &Sequence| sequence.num_overtaken == 0 && is_meant(sequence.tenant);
        let Some(index) = self.waiting.iter().position(is_meant) else { return false };
        let last_overtaken = self.waiting.range(..index).rposition(|sequence| sequence.num_overtaken > 0);
        if let Some(sequence) = self.take(index) {
            self.waiting.insert(last_overtaken.map_or(0, |last| last + 1), sequence);
        }
        true
    }

    /// Takes the sequence at an index, whose turn counts as passed.
    pub(crate) fn take(&mut self, index: usize) -> Option<Sequence> {
        let sequence = self.waiting.remove(index)?;
        self.turn = self.turn.max(sequence.turn);
        Some(sequence)
    }

    /// Removes a sequence. Returns false if the sequence is not in the queue.
    pub(crate) fn remove(&mut self, id: SequenceId) -> bool {
        let position = self.waiting.iter().position(|waiting| waiting.id == id);
        position.and_then(|position| self.waiting.remove(position)).is_some()
    }

    /// Takes the sequences for which `is_over` is true.
    pub(crate) fn take_where(&mut self, is_over: impl Fn(&Sequence) -> bool) -> Vec<Sequence> {
        let (over, waiting) = self.waiting.drain(..).partition(is_over);
        self.waiting = waiting;
        Vec::from(over)
    }

    /// Takes all sequences, in the order of the queue.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sequence> {
        self.waiting.drain(..)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.iter()
    }

    /// True if more than one tenant has had a sequence in the queue so far.
    pub(crate) fn has_tenants(&self) -> bool {
        self.last_turns.len() > 1
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }
}
