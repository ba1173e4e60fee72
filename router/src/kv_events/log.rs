//! The messages that were published last, in one buffer that all subscribers read.
//!
//! Entry point: [`Log`]. A subscriber has only the number of the message that it reads next, so a slow subscriber has
//! no queue of its own: when it is too far behind, it misses messages. The buffer has a bound in messages and one in
//! bytes.

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
    /// The number of the message, from 0 on.
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

    /// Adds a message, for which the oldest messages make room. Only one thread may add messages.
    pub(super) fn push(&self, payload: Arc<[u8]>) {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = self.next();
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

    /// Returns messages from number `from` on: about `bytes` bytes, at least one message if there is any. Returns
    /// `None` if number `from` is not among the last `num_last` messages, or no longer in the buffer.
    pub(super) fn read(&self, from: u64, num_last: usize, bytes: usize) -> Option<Vec<Message>> {
        let buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let messages = &buffer.messages;
        let first = messages.partition_point(|message| message.sequence < from);
        let is_next = from >= messages.back().map_or_else(|| self.next(), |last| last.sequence + 1);
        let is_there = messages.get(first).is_some_and(|message| message.sequence == from);
        if !is_next && (!is_there || messages.len() - first > num_last) {
            return None;
        }
        let mut num_bytes = 0;
        let fits = |message: &&Message| {
            let is_room = num_bytes < bytes;
            num_bytes += message.payload.len();
            is_room
        };
        Some(messages.range(first..).take_while(fits).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(max_messages: usize, max_bytes: usize, num_messages: usize) -> Log {
        let log = Log::new(max_messages, max_bytes);
        (0..num_messages).for_each(|_| log.push([0; 10].into()));
        log
    }

    fn read(log: &Log, from: u64, num_last: usize, bytes: usize) -> Option<Vec<u64>> {
        let numbers = |messages: Vec<Message>| messages.iter().map(|message| message.sequence).collect();
        log.read(from, num_last, bytes).map(numbers)
    }

    #[test]
    fn the_oldest_messages_go_first() {
        for (log, oldest) in [(log(3, 1000, 5), 2), (log(9, 150, 5), 3)] {
            assert_eq!(read(&log, oldest - 1, 10, 1000), None);
            assert_eq!(read(&log, oldest, 10, 1000), Some((oldest..5).collect()));
        }
        let none_fits = log(0, 25, 5);
        assert_eq!(none_fits.next(), 5);
        assert_eq!(read(&none_fits, 4, 10, 1000), None);
        assert_eq!(read(&none_fits, 5, 10, 1000), Some(vec![]));
    }

    #[test]
    fn a_reader_gets_what_it_asks_for_or_hears_that_it_is_too_late() {
        let log = log(9, 1000, 6);
        assert_eq!(read(&log, 4, 9, 1000), Some(vec![4, 5]));
        assert_eq!(read(&log, 3, 3, 1000), Some(vec![3, 4, 5]));
        assert_eq!(read(&log, 2, 3, 1000), None);
        assert_eq!(read(&log, 0, 9, 11), Some(vec![0, 1]));
        assert_eq!(read(&log, 0, 9, 1), Some(vec![0]));
        for next in [6, u64::MAX] {
            assert_eq!(read(&log, next, 0, 1000), Some(vec![]));
        }
    }
}
