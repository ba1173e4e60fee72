//! Sequences that wait, in order of arrival, those of several tenants in turns; those that were preempted are in front.
//!
//! Tenants take turns by fair queuing (Demers, Keshav and Shenker, 1989): a sequence gets the turn after its tenant's
//! last one, but never a turn that has passed. A tenant with many sequences delays its own, not those of others.
//!
//! How many there can be is bounded by the permits of the router. Who may leave is decided in `admission`.

use std::collections::{HashMap, VecDeque};

use crate::sequence::Sequence;
use crate::{SequenceId, Tenant};

/// First come, first served, tenant by tenant.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Sequence>,
    /// The latest turn of a sequence that left the queue.
    turn: u64,
    /// The turn of each tenant's last sequence.
    last_turns: HashMap<Tenant, u64>,
}

impl Queue {
    /// Puts a sequence behind those whose turn is not after its own.
    pub(crate) fn push(&mut self, mut sequence: Sequence) {
        let last_turn = self.last_turns.entry(sequence.tenant).or_default();
        sequence.turn = self.turn.max(*last_turn) + 1;
        *last_turn = sequence.turn;
        let is_later = |waiting: &&Sequence| waiting.turn > sequence.turn;
        let num_later = self.waiting.iter().rev().take_while(is_later).count();
        self.waiting.insert(self.waiting.len() - num_later, sequence);
    }

    /// Puts a sequence before all others.
    pub(crate) fn push_front(&mut self, sequence: Sequence) {
        self.waiting.push_front(sequence);
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Sequence> {
        self.waiting.get(index)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Sequence> {
        self.waiting.get_mut(index)
    }

    /// The sequence of that name.
    pub(crate) fn find_mut(&mut self, id: SequenceId) -> Option<&mut Sequence> {
        self.waiting.iter_mut().find(|sequence| sequence.id == id)
    }

    /// Takes the sequence at a place.
    pub(crate) fn take(&mut self, index: usize) -> Option<Sequence> {
        let sequence = self.waiting.remove(index)?;
        self.turn = self.turn.max(sequence.turn);
        Some(sequence)
    }

    /// Takes one out of the middle. False when it does not wait.
    pub(crate) fn remove(&mut self, id: SequenceId) -> bool {
        let position = self.waiting.iter().position(|waiting| waiting.id == id);
        position.and_then(|position| self.waiting.remove(position)).is_some()
    }

    /// Takes those that are over.
    pub(crate) fn take_where(&mut self, is_over: impl Fn(&Sequence) -> bool) -> Vec<Sequence> {
        let (over, waiting) = self.waiting.drain(..).partition(is_over);
        self.waiting = waiting;
        Vec::from(over)
    }

    /// Takes all, oldest first.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sequence> {
        self.waiting.drain(..)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.iter()
    }

    /// True if sequences of several tenants have waited so far.
    pub(crate) fn has_tenants(&self) -> bool {
        self.last_turns.len() > 1
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }
}
