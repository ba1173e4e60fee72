//! Failed rows: a shard reports that a row of a step cannot continue. The other rows go on.
//!
//! Entry point: [`Scheduler::fail`]. The sequence ends with one event. Its replies from steps that are under way are
//! dropped when they come, as for every sequence that has ended. If the values of the row were not finite, lookups in
//! the prefix cache no longer find its blocks, including those that the sequence found there, so later sequences
//! compute them again. A sequence that was admitted with such blocks but has read nothing yet goes back to the queue,
//! and then computes the blocks itself.

use proto::RowFailure;

use crate::running::Running;
use crate::slot::SlotId;
use crate::step::Expected;
use crate::{Event, Scheduler, SequenceEvent};

impl Scheduler {
    /// Ends the sequence whose row has failed, and returns its last event. Returns `None` if the sequence is no longer
    /// in the row's slot.
    pub(crate) fn fail(&mut self, failure: RowFailure, expected: &Expected) -> Option<Event> {
        let slot = expected.slot;
        self.rows.admitted(slot, expected.admission)?;
        let sequence = match failure {
            RowFailure::NothingAllowed => self.release(slot)?,
            RowFailure::NotFinite | RowFailure::Unspecified => {
                let running = self.rows.remove(slot)?;
                self.pool.forget(&running.table);
                let sequence = self.give_back(slot, running);
                self.readmit_unread();
                sequence
            }
        };
        Some(Event { id: sequence.id, kind: SequenceEvent::Failed(reason(failure).to_owned()) })
    }

    /// Puts sequences that hold forgotten blocks and have read nothing yet back at the front of the queue.
    fn readmit_unread(&mut self) {
        let is_spoiled = |running: &Running| !running.is_open() && self.pool.is_forgotten(&running.table);
        let spoiled = self.rows.iter().filter(|(_, running)| is_spoiled(running));
        let slots: Vec<SlotId> = spoiled.map(|(slot, _)| slot).collect();
        for slot in slots.into_iter().rev() {
            if let Some(sequence) = self.release(slot) {
                self.waiting.push_front(sequence);
            }
        }
    }
}

/// Returns the message for the client.
fn reason(failure: RowFailure) -> &'static str {
    match failure {
        RowFailure::NothingAllowed => "the grammar allows no next token",
        RowFailure::NotFinite | RowFailure::Unspecified => {
            "the model computed values that are not finite for this sequence"
        }
    }
}
