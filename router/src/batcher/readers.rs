//! The readers of sequences. They receive the events of their sequences, and a sequence is cancelled when its reader is
//! gone.
//!
//! Entry point: [`Readers`]. Each sequence has a channel with room for all its events, so a slow reader never stops the
//! loop. A reader that goes away closes its channel. The loop checks for closed channels before it schedules steps, so
//! a cancellation cannot be lost.

use hashbrown::HashMap;
use scheduler::{Event, Scheduler, SequenceEvent, SequenceId};
use tokio::sync::OwnedSemaphorePermit;

use crate::delivery::{EventSender, TooSlow};
use crate::grammar::GrammarMatcher;

/// The readers of all waiting and running sequences. A fast hash is safe, because clients do not choose the ids.
#[derive(Debug, Default)]
pub(super) struct Readers(HashMap<SequenceId, Reader>);

/// The sending end of one sequence's events, and state that the loop keeps for the sequence.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) events: EventSender,
    /// The permits of the prompt's tokens in the queue. They are released when the sequence leaves the queue.
    pub(super) queue_permit: Option<OwnedSemaphorePermit>,
    /// The state of the sequence in its grammar. `None` while the next mask is computed, or if there is no grammar.
    pub(super) matcher: Option<GrammarMatcher>,
}

impl Readers {
    /// Adds the reader of a submitted sequence.
    pub(super) fn insert(&mut self, id: SequenceId, reader: Reader) {
        self.0.insert(id, reader);
    }

    /// Takes the matcher (grammar state) of a sequence. Returns `None` if the sequence has no grammar or has ended.
    pub(super) fn take_matcher(&mut self, id: SequenceId) -> Option<GrammarMatcher> {
        self.0.get_mut(&id)?.matcher.take()
    }

    /// Puts the matcher (grammar state) of a sequence back. Returns false if the sequence has ended.
    pub(super) fn put_matcher(&mut self, id: SequenceId, matcher: GrammarMatcher) -> bool {
        self.0.get_mut(&id).map(|reader| reader.matcher = Some(matcher)).is_some()
    }

    /// Cancels the sequences whose event channels were closed by their readers.
    pub(super) fn cancel_abandoned(&mut self, scheduler: &mut Scheduler) {
        self.0.retain(|&id, reader| {
            let is_abandoned = reader.events.is_closed();
            if is_abandoned {
                scheduler.cancel(id);
            }
            !is_abandoned
        });
    }

    /// Passes events to their readers. A sequence fails if unread events need more memory than is free.
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
