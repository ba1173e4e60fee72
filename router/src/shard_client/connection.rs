//! One rank's socket: frames out, frames in, and the answers that nobody has taken yet.
//!
//! Waiting may be abandoned at any point without losing a byte: what came so far stays in the buffer, and answers stay until
//! they are taken. It knows commands and replies as bytes and numbers only, not what they mean.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use endpoint::Endpoint;
use proto::{HEADER_BYTES, Reply, frame, reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use super::ShardClientError;
use super::error::unexpected;
use crate::socket::Socket;

/// An address where nobody listens yet is tried again after this long.
const CONNECT_RETRY: Duration = Duration::from_millis(50);

/// A connection to one shard.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) rank: u32,
    stream: Socket,
    /// Bytes read that are no whole frame.
    buffer: Vec<u8>,
    /// Answers to the commands that come next, oldest first.
    answers: VecDeque<reply::Kind>,
    /// The last command that was sent.
    last_sent: u64,
    /// The last command that was answered.
    last_answered: u64,
    /// What came behind the last answer and ends the conversation.
    failure: Option<ShardClientError>,
    /// Whether the shard has said that something went wrong; it ends then, which is no news.
    has_complained: bool,
    /// When the shard last said that it is alive.
    heard_at: Instant,
}

impl Connection {
    /// Connects as soon as the shard listens.
    ///
    /// # Errors
    /// When it does not within `deadline`.
    pub(super) async fn connect(endpoint: &Endpoint, rank: u32, deadline: Duration) -> Result<Self, ShardClientError> {
        let give_up_at = Instant::now() + deadline;
        loop {
            let connected = timeout_at(give_up_at, Socket::connect(endpoint)).await;
            match connected.unwrap_or_else(|elapsed| Err(elapsed.into())) {
                Ok(stream) => {
                    return Ok(Self {
                        rank,
                        stream,
                        buffer: Vec::new(),
                        answers: VecDeque::new(),
                        last_sent: 0,
                        last_answered: 0,
                        failure: None,
                        has_complained: false,
                        heard_at: Instant::now(),
                    });
                }
                Err(source) if Instant::now() >= give_up_at => {
                    let endpoint = endpoint.clone();
                    return Err(ShardClientError::Connect { rank, endpoint, after: deadline, source });
                }
                Err(_) => tokio::time::sleep(CONNECT_RETRY).await,
            }
        }
    }

    /// Sends the frame of the command of this number; numbers count up from 1.
    ///
    /// # Errors
    /// When the socket does not allow it.
    pub(super) async fn send(&mut self, sequence_number: u64, frame: &[u8]) -> Result<(), ShardClientError> {
        self.last_sent = sequence_number;
        match self.stream.write_all(frame).await {
            Ok(()) => Ok(()),
            // It may have said why.
            Err(error) if is_closed(&error) => Err(self.broken().await),
            Err(source) => Err(ShardClientError::Io { rank: self.rank, source }),
        }
    }

    /// Waits until there is an answer to take. The deadline counts from `since`, or from the last sign of life after it. Safe to
    /// abandon and to begin again.
    ///
    /// # Errors
    /// When there is none; an error the shard answers is an error here. [`ShardClientError::Timeout`] has no ranks.
    pub(super) async fn wait_for_answer(&mut self, since: Instant, deadline: Duration) -> Result<(), ShardClientError> {
        while self.answers.is_empty() {
            let give_up_at = since.max(self.heard_at) + deadline;
            let received = timeout_at(give_up_at, self.receive()).await;
            received.map_err(|_| ShardClientError::timeout("", deadline))??;
        }
        Ok(())
    }

    /// Takes in whatever comes until the shard fails; without a command under way anything is a failure. Safe to abandon.
    ///
    /// # Errors
    /// The failure.
    pub(super) async fn watch(&mut self) -> Result<Infallible, ShardClientError> {
        loop {
            self.receive().await?;
        }
    }

    /// Keeps a failure for whoever waits next.
    pub(super) fn keep(&mut self, failure: ShardClientError) {
        self.failure = Some(failure);
    }

    /// Whether an answer waits to be taken.
    pub(super) fn has_answered(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The oldest answer, once.
    pub(super) fn take_answer(&mut self) -> Option<reply::Kind> {
        self.answers.pop_front()
    }

    /// Takes in the next reply; an error the shard answers is an error here. Safe to abandon.
    async fn receive(&mut self) -> Result<(), ShardClientError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let Reply { sequence_number: got, kind } = self.read_frame().await?;
        let (rank, expected) = (self.rank, self.last_answered + 1);
        match kind {
            Some(reply::Kind::Error(error)) => {
                self.has_complained = true;
                Err(ShardClientError::Shard { rank, error })
            }
            _ if got != expected => Err(ShardClientError::SequenceNumber { rank, expected, got }),
            Some(kind) if expected > self.last_sent => Err(unexpected(rank, "nothing", &kind)),
            // The shard's own log says what is done.
            Some(reply::Kind::Progress(_)) => {
                self.heard_at = Instant::now();
                Ok(())
            }
            Some(kind) => {
                self.last_answered = expected;
                self.answers.push_back(kind);
                Ok(())
            }
            None => Err(ShardClientError::Unexpected { rank, command: "a command", got: "an empty reply" }),
        }
    }

    /// Waits until the conversation breaks, whatever the shard says before that; for ever if the shard has said why. Safe to
    /// abandon.
    pub(super) async fn broken(&mut self) -> ShardClientError {
        let rank = self.rank;
        if let Some(failure) = self.failure.take() {
            return failure;
        }
        if self.has_complained {
            std::future::pending::<()>().await;
        }
        loop {
            match self.read_frame().await {
                Ok(Reply { kind: Some(reply::Kind::Error(error)), .. }) => {
                    self.has_complained = true;
                    return ShardClientError::Shard { rank, error };
                }
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    async fn read_frame(&mut self) -> Result<Reply, ShardClientError> {
        let rank = self.rank;
        loop {
            if let Some(reply) = self.take_frame()? {
                return Ok(reply);
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(ShardClientError::Closed { rank }),
                Ok(_) => {}
                Err(error) if is_closed(&error) => return Err(ShardClientError::Closed { rank }),
                Err(source) => return Err(ShardClientError::Io { rank, source }),
            }
        }
    }

    fn take_frame(&mut self) -> Result<Option<Reply>, ShardClientError> {
        let frame_error = |source| ShardClientError::Frame { rank: self.rank, source };
        let Some((&header, rest)) = self.buffer.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let len = frame::body_len(header).map_err(frame_error)?;
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let reply = frame::decode(body).map_err(frame_error)?;
        self.buffer.drain(..HEADER_BYTES + len);
        Ok(Some(reply))
    }
}

/// Whether the other side is gone; with commands that it has not read, the system says so in another way.
fn is_closed(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe)
}
