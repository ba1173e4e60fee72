//! A subscriber: gets each message from its subscription on, except those that it was too slow for.

use std::collections::BTreeSet;
use std::sync::Arc;

use zmtp::Incoming;

use super::Feed;
use super::peer::{Peer, PeerError};

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
    // The number of the next message to send; `None` without a subscription.
    let mut cursor: Option<u64> = None;
    let mut news = peer.shake_hands().await?;
    loop {
        news.drain(..).for_each(|news| subscriptions.take(news, &feed.topic));
        cursor = match cursor {
            _ if !subscriptions.match_topic() => None,
            None => Some(feed.log.next()),
            Some(sequence) => Some(sequence),
        };
        next_rx.mark_unchanged();
        if let Some(cursor) = &mut cursor
            && peer.is_drained()
        {
            for message in feed.log.read(*cursor, feed.hwm, CHUNK_BYTES) {
                peer.add(&[&feed.topic, &message.sequence.to_be_bytes(), &message.payload]);
                *cursor = message.sequence + 1;
            }
        }
        let waits = cursor.is_some() && peer.is_drained();
        let wake = async {
            // The sender is in `feed`, so it is never gone.
            if !waits || next_rx.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        news = peer.turn(true, wake).await?;
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
