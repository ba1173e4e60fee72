//! The way of events from the batcher to the log of messages.
//!
//! Entry point: [`Sink`]. The batcher's own thread writes the message of a step, which takes less time than the names
//! of its blocks took. So there is no queue that could be full, and no step is left out.

use std::sync::Arc;

use scheduler::BlockEvent;

use super::payload::Payload;
use super::{Feed, state};

/// The batcher's end of the publisher.
#[derive(Debug)]
pub(crate) struct Sink(Arc<Feed>);

impl Sink {
    pub(super) fn new(feed: Arc<Feed>) -> Self {
        Self(feed)
    }

    /// Publishes the events of one step, if there are any. Never waits.
    pub(crate) fn publish(&mut self, events: &[BlockEvent]) {
        if events.is_empty() {
            return;
        }
        let Self(feed) = self;
        let mut payload = Payload::new(feed.block_size);
        let sequence = feed.log.next();
        // A consumer may know blocks that a server before this one had.
        if sequence == 0 {
            payload.add_cleared();
        }
        events.iter().for_each(|event| payload.add(event));
        feed.blocks.apply(sequence, events);
        feed.log.push(payload.finish(state::seconds_since_1970()).into());
    }
}
