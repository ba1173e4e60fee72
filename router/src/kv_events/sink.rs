//! The way of events from the batcher to the log of messages: a bounded queue, and a task that encodes.
//!
//! Entry points: [`Sink`], which never waits, and [`encode_all`]. If the queue is full, the events of a step are
//! dropped. Their number is used up, so subscribers notice the gap.

use std::sync::Arc;
use std::time::SystemTime;

use metrics::Counter;
use scheduler::BlockEvent;
use tokio::sync::mpsc;

use super::{Feed, payload};
use crate::memory::{Held, Part};

/// The maximum memory of the events in the queue, in bytes.
pub(super) const MAX_QUEUE_BYTES: usize = 16 << 20;

/// The batcher's end of the queue.
#[derive(Debug)]
pub(crate) struct Sink {
    batches_tx: mpsc::Sender<Batch>,
    memory: Part,
    /// The number of the next message.
    next_sequence: u64,
    num_dropped: Counter,
    /// True if the events of the last step were dropped.
    is_full: bool,
}

/// The events of one step.
#[derive(Debug)]
pub(super) struct Batch {
    sequence: u64,
    at: SystemTime,
    events: Vec<BlockEvent>,
    _held: Held,
}

impl Sink {
    /// Creates a queue with room for `max_batches` steps. `num_dropped` counts the steps whose events were dropped.
    pub(super) fn new(max_batches: usize, num_dropped: Counter) -> (Self, mpsc::Receiver<Batch>) {
        let (batches_tx, batches_rx) = mpsc::channel(max_batches);
        let memory = Part::new(MAX_QUEUE_BYTES);
        (Self { batches_tx, memory, next_sequence: 0, num_dropped, is_full: false }, batches_rx)
    }

    /// Queues the events of one step, if there are any.
    pub(crate) fn publish(&mut self, events: Vec<BlockEvent>) {
        if events.is_empty() {
            return;
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let batch = self.memory.try_take(bytes(&events)).map(|held| {
            let at = SystemTime::now();
            Batch { sequence, at, events, _held: held }
        });
        let is_queued = batch.is_some_and(|batch| self.batches_tx.try_send(batch).is_ok());
        if !is_queued {
            self.num_dropped.increment(1);
            if !self.is_full {
                tracing::warn!(sequence, "KV events are dropped, because the queue of the publisher is full");
            }
        }
        self.is_full = !is_queued;
    }
}

/// Returns the memory of events, in bytes.
fn bytes(events: &[BlockEvent]) -> usize {
    let lists = events.iter().map(|event| match event {
        BlockEvent::Stored { parent: _, blocks, token_ids } => size_of_val(&**blocks) + size_of_val(&**token_ids),
        BlockEvent::Removed { blocks } => size_of_val(&**blocks),
    });
    size_of_val(events) + lists.sum::<usize>()
}

/// Encodes the queued events of each step and adds them to the log. Ends when the batcher has ended.
pub(super) async fn encode_all(mut batches_rx: mpsc::Receiver<Batch>, feed: Arc<Feed>, block_size: u32) {
    while let Some(Batch { sequence, at, events, _held }) = batches_rx.recv().await {
        let since_1970 = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        feed.log.push(sequence, payload::encode(since_1970.as_secs_f64(), &events, block_size).into());
    }
}

#[cfg(test)]
mod tests {
    use scheduler::BlockHash;

    use super::*;
    use crate::testing::within;

    fn events(num_tokens: usize) -> Vec<BlockEvent> {
        vec![BlockEvent::Stored { parent: None, blocks: vec![BlockHash(1)], token_ids: vec![2; num_tokens] }]
    }

    async fn next(batches_rx: &mut mpsc::Receiver<Batch>) -> Batch {
        within("a batch of events", batches_rx.recv()).await.expect("the sink is alive")
    }

    #[tokio::test]
    async fn a_full_queue_drops_events_and_leaves_a_gap() {
        let (mut sink, mut batches_rx) = Sink::new(2, Counter::noop());
        (0..4).for_each(|_| sink.publish(events(1)));
        sink.publish(Vec::new());
        assert!(sink.is_full);
        assert_eq!(next(&mut batches_rx).await.sequence, 0);
        sink.publish(events(1));
        assert!(!sink.is_full);
        assert_eq!(next(&mut batches_rx).await.sequence, 1);
        assert_eq!(next(&mut batches_rx).await.sequence, 4);
    }

    #[tokio::test]
    async fn large_events_fill_the_queue_too() {
        let (mut sink, mut batches_rx) = Sink::new(100, Counter::noop());
        let half = events(MAX_QUEUE_BYTES / 4 / 2);
        sink.publish(half.clone());
        sink.publish(half.clone());
        assert!(sink.is_full);
        drop(next(&mut batches_rx).await);
        sink.publish(half);
        assert!(!sink.is_full);
    }
}
