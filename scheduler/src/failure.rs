//! Rows that cannot go on: a shard says so of one of a step, and the others go on.
//!
//! Door: [`Scheduler::fail`]. The sequence ends with one event; what is under way for it is dropped when it comes, as
//! for every sequence that has ended. Blocks of numbers that are not finite leave the prefix cache, those too that it
//! found there: whoever comes next computes them anew, and so does a sequence that was admitted with such blocks and
//! has read nothing yet.

use proto::RowFailure;

use crate::rows::SlotId;
use crate::running::Running;
use crate::step::Expected;
use crate::{Event, Scheduler, SequenceEvent};

impl Scheduler {
    /// Ends the sequence whose row has failed; `None` where it has ended already.
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

    /// Puts sequences that hold forgotten blocks and have read nothing yet back to the front of the queue.
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

/// The message for the client.
fn reason(failure: RowFailure) -> &'static str {
    match failure {
        RowFailure::NothingAllowed => "no token is allowed here",
        RowFailure::NotFinite | RowFailure::Unspecified => {
            "the model's numbers for this sequence are not finite; other sequences are not affected"
        }
    }
}
