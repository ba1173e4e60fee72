//! Replays: a subscriber that missed messages asks for all messages from a number on. If some of them are gone, it gets
//! all blocks instead.
//!
//! ```text
//! request   ""  first number (8 bytes, big-endian)
//! replies   ""  topic  number  payload
//!           ""  ""     -1      ""             after the last
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use zmtp::Incoming;

use super::log::Message;
use super::peer::{Peer, PeerError};
use super::{Feed, state};

/// The number of bytes of messages that are added at a time.
const CHUNK_BYTES: usize = 32 << 10;

/// The number after the last message of a replay.
const END: [u8; 8] = (-1_i64).to_be_bytes();

/// A replay under way.
#[derive(Debug, Clone, Copy)]
struct Replay {
    /// The number of the next message to send.
    next: u64,
    /// The number at which the replay ends.
    end: u64,
    /// True if the mark of the end was added.
    is_complete: bool,
}

/// Answers the requests of a subscriber until the connection ends. Returns the reason of the end.
pub(super) async fn serve(mut peer: Peer, feed: Arc<Feed>) -> PeerError {
    match run(&mut peer, &feed).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

async fn run(peer: &mut Peer, feed: &Feed) -> Result<std::convert::Infallible, PeerError> {
    // The first numbers of requests that came together. While one waits, the peer is not read.
    let mut requests: VecDeque<u64> = VecDeque::new();
    let mut replay: Option<Replay> = None;
    let mut news = peer.shake_hands().await?;
    loop {
        requests.extend(news.drain(..).filter_map(first_number));
        if replay.is_none() {
            replay = requests.pop_front().map(|next| Replay { next, end: feed.log.next(), is_complete: false });
        }
        if let Some(current) = &mut replay
            && peer.is_drained()
        {
            continue_replay(current, peer, feed).await?;
            if current.is_complete {
                replay = None;
            }
        }
        // A replay under way has added bytes to write.
        let is_idle = replay.is_none() && requests.is_empty();
        news = peer.turn(is_idle, std::future::pending()).await?;
    }
}

/// Returns the first number of a request. Other messages are ignored, as in vLLM.
fn first_number(news: Incoming) -> Option<u64> {
    let Incoming::Request(frames) = news else { return None };
    let [_, number] = &*frames else {
        tracing::debug!(frames = frames.len(), "a request for a replay does not have two frames");
        return None;
    };
    let mut bytes = [0; 8];
    bytes.get_mut(8_usize.checked_sub(number.len())?..)?.copy_from_slice(number);
    Some(u64::from_be_bytes(bytes))
}

/// Adds the next messages of a replay, or the mark of its end.
///
/// # Errors
/// When some messages are gone, and there is no memory for one with all blocks.
async fn continue_replay(replay: &mut Replay, peer: &mut Peer, feed: &Feed) -> Result<(), PeerError> {
    let end = replay.end;
    if replay.next >= end {
        peer.add(&[b"", b"", &END, b""]);
        replay.is_complete = true;
        return Ok(());
    }
    let messages = feed.log.read(replay.next, feed.buffer_steps, CHUNK_BYTES);
    let mut add = |message: &Message| {
        peer.add(&[b"", &feed.topic, &message.sequence.to_be_bytes(), &message.payload]);
        replay.next = message.sequence + 1;
    };
    match messages {
        None => {
            let (message, held) = state::message(feed).await?;
            add(&message);
            peer.hold(held);
        }
        Some(messages) => messages.iter().take_while(|message| message.sequence < end).for_each(add),
    }
    Ok(())
}
