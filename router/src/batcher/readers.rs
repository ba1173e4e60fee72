//! The readers of sequences: events go to them, and a sequence ends when its reader is gone.
//!
//! Door: [`Readers`]. Each sequence has an event channel that can hold every event of the sequence, so a slow reader
//! never stops the loop. A reader that goes away closes its channel, which cancels the sequence. Such a cancellation
//! cannot be lost, and it is seen before the next step is scheduled.

use hashbrown::HashMap;
use scheduler::{Event, Scheduler, SequenceEvent, SequenceId};
use tokio::sync::OwnedSemaphorePermit;

use crate::delivery::{EventSender, TooSlow};
use crate::grammar::GrammarMatcher;

/// The readers of all waiting and running sequences. Ids are numbers of our own, so a fast hash is safe.
#[derive(Debug, Default)]
pub(super) struct Readers(HashMap<SequenceId, Reader>);

/// The reader of one sequence.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) events: EventSender,
    /// Given back when the sequence leaves the queue.
    pub(super) queue_permit: Option<OwnedSemaphorePermit>,
    /// The state of the sequence in its grammar; absent while the next mask is computed.
    pub(super) matcher: Option<GrammarMatcher>,
}

impl Readers {
    /// Adds the reader of a submitted sequence.
    pub(super) fn insert(&mut self, id: SequenceId, reader: Reader) {
        self.0.insert(id, reader);
    }

    /// Takes the grammar state of a sequence. Returns `None` if the sequence has no grammar or has ended.
    pub(super) fn take_matcher(&mut self, id: SequenceId) -> Option<GrammarMatcher> {
        self.0.get_mut(&id)?.matcher.take()
    }

    /// Puts the grammar state back. Returns false if the sequence has ended.
    pub(super) fn put_matcher(&mut self, id: SequenceId, matcher: GrammarMatcher) -> bool {
        self.0.get_mut(&id).map(|reader| reader.matcher = Some(matcher)).is_some()
    }

    /// Ends the sequences that nobody reads any more.
    pub(super) fn cancel_abandoned(&mut self, scheduler: &mut Scheduler) {
        self.0.retain(|&id, reader| {
            let is_abandoned = reader.events.is_closed();
            if is_abandoned {
                scheduler.cancel(id);
            }
            !is_abandoned
        });
    }

    /// Passes events to their readers. A sequence ends if its reader is too slow.
    pub(super) fn dispatch(&mut self, events: Vec<Event>, scheduler: &mut Scheduler) {
        for Event { id, kind } in events {
            let Some(reader) = self.0.get_mut(&id) else { continue };
            if let SequenceEvent::Admitted { .. } = kind {
                reader.queue_permit = None;
            }
            if kind.is_terminal() {
                reader.events.end(kind);
                self.0.remove(&id);
            } else if let Err(TooSlow) = reader.events.send(kind) {
                scheduler.cancel(id);
                reader.events.end(SequenceEvent::Failed(TooSlow.to_string()));
                self.0.remove(&id);
            }
        }
    }
}
