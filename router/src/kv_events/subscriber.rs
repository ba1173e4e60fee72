//! A subscriber: gets all blocks when it subscribes, and then each message. If it was too slow for some, it gets all
//! blocks again.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use zmtp::Incoming;

use super::peer::{Peer, PeerError, SUBSCRIPTION_DEADLINE};
use super::{Feed, state};

/// The number of bytes of messages that are added at a time.
const CHUNK_BYTES: usize = 32 << 10;

/// The subscriptions of a peer that match the topic. Each is a prefix of the topic, so its length names it.
#[derive(Debug, Default)]
struct Subscriptions(BTreeSet<usize>);

impl Subscriptions {
    fn take(&mut self, news: Incoming, topic: &[u8]) {
        match news {
            Incoming::Subscribe(prefix) if topic.starts_with(&prefix) => {
                self.0.insert(prefix.len());
            }
            Incoming::Cancel(prefix) if topic.starts_with(&prefix) => {
                self.0.remove(&prefix.len());
            }
            Incoming::Subscribe(_) | Incoming::Cancel(_) | Incoming::Ready | Incoming::Request(_) => {}
        }
    }

    fn match_topic(&self) -> bool {
        !self.0.is_empty()
    }
}

/// The next thing that a subscriber gets.
#[derive(Debug, Clone, Copy)]
enum Cursor {
    /// All blocks.
    Blocks,
    /// The message with this number.
    Message(u64),
}

impl Cursor {
    /// Adds the next messages to the bytes to write, if there are any.
    ///
    /// # Errors
    /// When there is no memory for a message with all blocks.
    async fn send(&mut self, peer: &mut Peer, feed: &Feed) -> Result<(), PeerError> {
        let messages = match *self {
            Self::Blocks => None,
            Self::Message(number) => feed.log.read(number, feed.hwm, CHUNK_BYTES),
        };
        let messages = match messages {
            Some(messages) => messages,
            None => {
                let (message, held) = state::message(feed).await?;
                if let Self::Message(number) = *self {
                    feed.num_missed.increment((message.sequence + 1).saturating_sub(number));
                }
                peer.hold(held);
                vec![message]
            }
        };
        for message in messages {
            peer.add(&[&feed.topic, &message.sequence.to_be_bytes(), &message.payload]);
            *self = Self::Message(message.sequence + 1);
        }
        Ok(())
    }
}

/// Sends messages to a subscriber until the connection ends. Returns the reason of the end.
pub(super) async fn serve(mut peer: Peer, feed: Arc<Feed>) -> PeerError {
    match run(&mut peer, &feed).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

async fn run(peer: &mut Peer, feed: &Feed) -> Result<std::convert::Infallible, PeerError> {
    let mut subscriptions = Subscriptions::default();
    let mut next_rx = feed.log.watch();
    // `None` without a subscription.
    let mut cursor: Option<Cursor> = None;
    let mut news = peer.shake_hands().await?;
    // The time until which a peer without a subscription must have one.
    let mut deadline = Instant::now() + SUBSCRIPTION_DEADLINE;
    loop {
        let was_subscribed = subscriptions.match_topic();
        news.drain(..).for_each(|news| subscriptions.take(news, &feed.topic));
        if subscriptions.match_topic() != was_subscribed {
            peer.show_subscribed(!was_subscribed);
            deadline = Instant::now() + SUBSCRIPTION_DEADLINE;
        }
        cursor = match cursor {
            _ if !subscriptions.match_topic() => None,
            // The first message says that no blocks were stored before it.
            None if feed.log.next() == 0 => Some(Cursor::Message(0)),
            None => Some(Cursor::Blocks),
            Some(cursor) => Some(cursor),
        };
        next_rx.mark_unchanged();
        if let Some(cursor) = &mut cursor
            && peer.is_drained()
        {
            cursor.send(peer, feed).await?;
        }
        let waits = cursor.is_some() && peer.is_drained();
        let wake = async {
            // The sender is in `feed`, so it is never gone.
            if !waits || next_rx.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let must_subscribe = cursor.is_none() && peer.has_place();
        let turn = peer.turn(true, wake);
        news = match must_subscribe {
            true => timeout_at(deadline, turn).await.unwrap_or(Err(PeerError::NotSubscribed))?,
            false => turn.await?,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_are_prefixes_of_the_topic() {
        let mut subscriptions = Subscriptions::default();
        let mut take = |news: Incoming| {
            subscriptions.take(news, b"kv@pod");
            subscriptions.match_topic()
        };
        assert!(!take(Incoming::Subscribe(b"other".to_vec())));
        assert!(!take(Incoming::Subscribe(b"kv@pod-1".to_vec())));
        assert!(take(Incoming::Subscribe(b"kv@".to_vec())));
        assert!(take(Incoming::Subscribe(Vec::new())));
        assert!(take(Incoming::Cancel(b"kv@".to_vec())));
        assert!(take(Incoming::Cancel(b"other".to_vec())));
        assert!(!take(Incoming::Cancel(Vec::new())));
        assert!(!take(Incoming::Cancel(Vec::new())));
    }
}
