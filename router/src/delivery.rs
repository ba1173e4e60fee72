//! The channel for a sequence's events, from the batcher to their reader, and the memory of unread events.
//!
//! Entry points: [`channel`], [`EventSender`], [`EventReceiver`]. The channel has room for every event that the
//! sequence can have, so a slow reader never stops the batcher. Unread events are counted in the memory budget: memory
//! that is taken for a batch of events is attached to the last event of the batch, and is freed when that event is
//! read. The permit of a sequence is released when the sequence ends, even if its last events are read much later. If
//! there is no memory for these events, the permit is held until they are read.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use proto::TopTokens;
use scheduler::SequenceEvent;
use tokio::sync::mpsc;

use crate::generation::Permit;
use crate::memory::{Account, Held, Part};

/// Unread events are checked each time this many bytes of events were sent. They take memory from the budget only if
/// the reader has read none of them since the last check, so until its last event a reader that keeps up takes none,
/// unless a single event has this many bytes.
const BATCH_BYTES: usize = 16 << 10;

/// The maximum time that a response that is not streamed waits for memory that other requests hold.
const PATIENCE: Duration = Duration::from_secs(2);

/// The sending end of a sequence's event channel, which the batcher owns.
#[derive(Debug)]
pub(crate) struct EventSender {
    parcels_tx: mpsc::Sender<Parcel>,
    answers: Part,
    /// The permit of the sequence, until the sequence ends.
    permit: Option<Permit>,
    /// The number of bytes that the reader holds for the sequence until it has read all events.
    reader_bytes: usize,
    /// The number of events that were sent since the last check, and the number of their bytes.
    num_new_events: usize,
    num_new_bytes: usize,
}

/// The receiving end of a sequence's event channel. Dropping the receiver cancels the sequence.
#[derive(Debug)]
pub(crate) struct EventReceiver {
    parcels_rx: mpsc::Receiver<Parcel>,
    /// Memory of events that were read but whose data is still in use.
    kept: Account,
}

/// The error when unread events need more memory than is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unread answers take the memory that `--memory-budget` leaves for them, and no room is left for this answer")]
pub(crate) struct TooSlow;

#[derive(Debug)]
struct Parcel {
    event: SequenceEvent,
    /// A resource that is released when the event is read.
    until_read: Option<Box<UntilRead>>,
}

#[derive(Debug)]
#[expect(dead_code, reason = "what it holds is given back when it is dropped")]
enum UntilRead {
    Memory(Held),
    Permit(Permit),
}

/// Creates a channel for a sequence with at most `most_events` events, whose reader holds `reader_bytes` for the
/// sequence.
pub(crate) fn channel(
    most_events: usize,
    reader_bytes: usize,
    (answers, permit): (Part, Permit),
) -> (EventSender, EventReceiver) {
    let (parcels_tx, parcels_rx) = mpsc::channel(most_events);
    let (num_new_events, num_new_bytes) = (0, 0);
    let (kept, permit) = (answers.open(), Some(permit));
    let sender = EventSender { parcels_tx, answers, permit, reader_bytes, num_new_events, num_new_bytes };
    (sender, EventReceiver { parcels_rx, kept })
}

impl EventSender {
    /// True if the receiver was dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.parcels_tx.is_closed()
    }

    /// Sends an event that is not the last one.
    ///
    /// # Errors
    /// When unread events need more memory than is free. In that case the event is not sent, and the caller should end
    /// the sequence.
    pub(crate) fn send(&mut self, event: SequenceEvent) -> Result<(), TooSlow> {
        self.num_new_events += 1;
        self.num_new_bytes += num_bytes(&event);
        let mut until_read = None;
        if self.num_new_bytes >= BATCH_BYTES {
            // The new events are counted only if the reader has read none of them. Otherwise it keeps up.
            if self.num_unread() + 1 >= self.num_new_events {
                let held = self.answers.try_take(self.num_new_bytes).ok_or(TooSlow)?;
                until_read = Some(Box::new(UntilRead::Memory(held)));
            }
            (self.num_new_events, self.num_new_bytes) = (0, 0);
        }
        self.put(Parcel { event, until_read });
        Ok(())
    }

    /// Sends the last event. Until it is read, memory is held for the events that were not counted and for the reader's
    /// data. If there is not enough memory, the permit is held instead.
    pub(crate) fn end(&mut self, event: SequenceEvent) {
        let until_read = self.permit.take().map(|permit| {
            let held = self.answers.try_take(self.num_new_bytes + num_bytes(&event) + self.reader_bytes);
            Box::new(held.map_or(UntilRead::Permit(permit), UntilRead::Memory))
        });
        self.put(Parcel { event, until_read });
    }

    fn num_unread(&self) -> usize {
        self.parcels_tx.max_capacity() - self.parcels_tx.capacity()
    }

    /// Puts a parcel into the channel, which has room for every event. A closed channel is ignored here, because the
    /// batcher checks for closed channels before it schedules steps.
    fn put(&self, parcel: Parcel) {
        if let Err(mpsc::error::TrySendError::Full(parcel)) = self.parcels_tx.try_send(parcel) {
            tracing::error!(
                "an event of a sequence is lost, because its channel is full, which is a defect of this server: {:?}",
                parcel.event
            );
        }
    }
}

impl EventReceiver {
    /// Holds memory for the data that the reader keeps after it has read the events: `bytes` in total, of which the
    /// first [`BATCH_BYTES`] are not counted. Returns false if the memory does not become free in time.
    pub(crate) async fn keep(&mut self, bytes: usize) -> bool {
        self.kept.grow_to(bytes.saturating_sub(BATCH_BYTES), PATIENCE).await
    }

    /// Returns the memory that is held for the data that the reader keeps.
    pub(crate) fn into_kept(self) -> Account {
        self.kept
    }

    /// Returns the next event, or `None` after the last one.
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<SequenceEvent>> {
        let parcel = ready!(self.parcels_rx.poll_recv(cx));
        Poll::Ready(parcel.map(|Parcel { event, until_read }| {
            drop(until_read);
            event
        }))
    }
}

/// Returns the memory of an event in its channel, in bytes.
fn num_bytes(event: &SequenceEvent) -> usize {
    // The two `Vec`s themselves are as large as 12 numbers of 4 bytes.
    let numbers_of = |top: &TopTokens| 12 + top.token_ids.len() + top.logprobs.len();
    let numbers = match event {
        SequenceEvent::Prompt(report) => {
            report.logprobs.len() + report.top_tokens.iter().map(numbers_of).sum::<usize>()
        }
        SequenceEvent::Token { token, finish: _ } => token.top_tokens.as_deref().map_or(0, numbers_of),
        _ => 0,
    };
    size_of::<Parcel>() + numbers * size_of::<u32>()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use proto::SampledToken;
    use scheduler::Tenant;

    use super::*;
    use crate::generation::Permits;

    fn token() -> SequenceEvent {
        let top_tokens = TopTokens { token_ids: vec![1; 500], logprobs: vec![0.0; 500] };
        let token = SampledToken { top_tokens: Some(Box::new(top_tokens)), ..SampledToken::default() };
        SequenceEvent::Token { token, finish: None }
    }

    /// Returns a channel that holds the only permit, the permits, and the part of the memory for answers.
    fn start(answers_bytes: usize) -> (EventSender, EventReceiver, Permits, Part) {
        let (permits, answers) = (Permits::new(1, 1), Part::new(answers_bytes));
        let permit = permits.try_take(Tenant::default(), 1).unwrap();
        let (sender, receiver) = channel(1000, 0, (answers.clone(), permit));
        (sender, receiver, permits, answers)
    }

    fn is_free(permits: &Permits) -> bool {
        permits.try_take(Tenant::default(), 1).is_some()
    }

    #[tokio::test]
    async fn a_reader_that_keeps_up_needs_no_memory() {
        let (mut sender, mut receiver, ..) = start(0);
        for _ in 0..100 {
            sender.send(token()).unwrap();
            poll_fn(|cx| receiver.poll_recv(cx)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn unread_events_hold_memory_and_after_the_end_no_permit() {
        let limit = 1 << 20;
        let (mut sender, mut receiver, permits, answers) = start(limit);
        for _ in 0..20 {
            sender.send(token()).unwrap();
        }
        assert!(answers.try_take(limit - 4 * BATCH_BYTES).is_none(), "20 events of 4 KB are counted");
        assert!(!is_free(&permits));
        sender.end(SequenceEvent::TimedOut);
        drop(sender);
        assert!(is_free(&permits));
        for _ in 0..20 {
            assert!(poll_fn(|cx| receiver.poll_recv(cx)).await.is_some());
        }
        assert!(answers.try_take(limit).is_none(), "the end is unread");
        assert_eq!(poll_fn(|cx| receiver.poll_recv(cx)).await, Some(SequenceEvent::TimedOut));
        assert!(answers.try_take(limit).is_some());
        assert_eq!(poll_fn(|cx| receiver.poll_recv(cx)).await, None);
    }

    #[tokio::test]
    async fn without_memory_the_slow_are_told_and_the_end_keeps_the_permit() {
        let (mut sender, mut receiver, permits, _) = start(BATCH_BYTES);
        let sent = (0..100).take_while(|_| sender.send(token()).is_ok()).count();
        assert!((3..10).contains(&sent), "{sent}");
        sender.end(SequenceEvent::Failed(TooSlow.to_string()));
        drop(sender);
        assert!(!is_free(&permits), "there is no memory for the end");
        while poll_fn(|cx| receiver.poll_recv(cx)).await.is_some() {}
        assert!(is_free(&permits));
    }

    #[tokio::test(start_paused = true)]
    async fn kept_data_is_counted_until_it_is_given_away() {
        let (sender, mut receiver, _, answers) = start(2 * BATCH_BYTES);
        for bytes in [1, BATCH_BYTES, 3 * BATCH_BYTES] {
            assert!(receiver.keep(bytes).await);
        }
        assert!(!receiver.keep(3 * BATCH_BYTES + 1).await);
        drop(sender);
        let kept = receiver.into_kept();
        assert!(answers.try_take(1).is_none());
        drop(kept);
        assert!(answers.try_take(2 * BATCH_BYTES).is_some());
    }

    #[tokio::test]
    async fn a_reader_that_leaves_gives_everything_back() {
        let (mut sender, receiver, permits, answers) = start(1 << 20);
        for _ in 0..20 {
            sender.send(token()).unwrap();
        }
        drop(receiver);
        assert!(sender.is_closed());
        assert!(answers.try_take(1 << 20).is_some());
        drop(sender);
        assert!(is_free(&permits));
    }
}
