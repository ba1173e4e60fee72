//! The messages that were published last, in one buffer that all subscribers read.
//!
//! Entry point: [`Log`]. A subscriber has only the number of the message that it reads next, so a slow subscriber has
//! no queue of its own: when it is too far behind, it misses the oldest messages. The buffer has a bound in messages
//! and one in bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// The maximum size of the buffer, in bytes.
pub(super) const MAX_LOG_BYTES: usize = 64 << 20;

/// The memory that a message takes beside its payload, in bytes.
const MESSAGE_BYTES: usize = 64;

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    /// The number of the message. Numbers grow, and a gap means that messages were lost.
    pub(super) sequence: u64,
    pub(super) payload: Arc<[u8]>,
}

/// The buffer of the last messages.
#[derive(Debug)]
pub(super) struct Log {
    max_messages: usize,
    max_bytes: usize,
    buffer: Mutex<Buffer>,
    /// The number after that of the last message.
    next_tx: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Buffer {
    messages: VecDeque<Message>,
    /// The size of all messages, in bytes.
    bytes: usize,
}

impl Message {
    /// The memory of the message, in bytes.
    fn bytes(&self) -> usize {
        self.payload.len() + MESSAGE_BYTES
    }
}

impl Log {
    /// Creates an empty buffer.
    pub(super) fn new(max_messages: usize, max_bytes: usize) -> Self {
        let (next_tx, _) = watch::channel(0);
        Self { max_messages, max_bytes, buffer: Mutex::default(), next_tx }
    }

    /// Adds a message, whose number is larger than those before. The oldest messages make room for it.
    pub(super) fn push(&self, sequence: u64, payload: Arc<[u8]>) {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let message = Message { sequence, payload };
        buffer.bytes += message.bytes();
        buffer.messages.push_back(message);
        while buffer.messages.len() > self.max_messages || buffer.bytes > self.max_bytes {
            let Some(oldest) = buffer.messages.pop_front() else { break };
            buffer.bytes -= oldest.bytes();
        }
        drop(buffer);
        self.next_tx.send_replace(sequence + 1);
    }

    /// Returns the number after that of the last message.
    pub(super) fn next(&self) -> u64 {
        *self.next_tx.borrow()
    }

    /// Returns a receiver of the number after that of the last message.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.next_tx.subscribe()
    }

    /// Returns messages from number `from` on, of the last `num_last` messages: about `bytes` bytes, at least one
    /// message if there is any.
    pub(super) fn read(&self, from: u64, num_last: usize, bytes: usize) -> Vec<Message> {
        let buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = &buffer.messages;
        let first = messages.partition_point(|message| message.sequence < from);
        let first = first.max(messages.len().saturating_sub(num_last));
        let mut num_bytes = 0;
        let fits = |message: &&Message| {
            let is_room = num_bytes < bytes;
            num_bytes += message.payload.len();
            is_room
        };
        messages.range(first..).take_while(fits).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(max_messages: usize, max_bytes: usize, sequences: impl IntoIterator<Item = u64>) -> Log {
        let log = Log::new(max_messages, max_bytes);
        sequences.into_iter().for_each(|sequence| log.push(sequence, [0; 10].into()));
        log
    }

    fn numbers(messages: &[Message]) -> Vec<u64> {
        messages.iter().map(|message| message.sequence).collect()
    }

    #[test]
    fn the_oldest_messages_go_first() {
        assert_eq!(numbers(&log(3, 1000, 0..5).read(0, 10, 1000)), [2, 3, 4]);
        assert_eq!(numbers(&log(9, 150, 0..5).read(0, 10, 1000)), [3, 4]);
        assert_eq!(numbers(&log(0, 25, 0..5).read(0, 10, 1000)), [0; 0]);
        assert_eq!(log(0, 25, 0..5).next(), 5);
    }

    #[test]
    fn a_reader_gets_what_it_asks_for_and_skips_what_is_too_old() {
        let log = log(9, 1000, [0, 1, 4, 5]);
        assert_eq!(numbers(&log.read(2, 9, 1000)), [4, 5]);
        assert_eq!(numbers(&log.read(0, 3, 1000)), [1, 4, 5]);
        assert_eq!(numbers(&log.read(0, 9, 11)), [0, 1]);
        assert_eq!(numbers(&log.read(0, 9, 1)), [0]);
        assert_eq!(numbers(&log.read(u64::MAX, 9, 1000)), [0; 0]);
    }
}
