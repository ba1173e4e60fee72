//! One shard's connection: it sends and receives frames, and stores the replies that were not taken yet.
//!
//! Waiting for a reply may be abandoned at any point without losing a byte: received bytes stay in the buffer, and
//! replies stay until they are taken. The connection checks the sequence numbers of replies, and handles progress and
//! errors. It does not interpret other replies.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use endpoint::Endpoint;
use futures_util::FutureExt as _;
use liveness::{AwakeTime, DOUBT, SILENCE_DEADLINE, TICK};
use proto::{Beat, HEADER_BYTES, Reply, frame, reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::error::unexpected;
use super::{ShardClientError, deadline};
use sockets::Socket;

/// The pause before the next attempt to connect to an address at which no shard listens yet.
const CONNECT_RETRY: Duration = Duration::from_millis(50);

/// A connection to one shard.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) shard: u32,
    stream: Socket,
    /// Received bytes that were not decoded yet.
    buffer: Vec<u8>,
    /// Replies that were not taken yet, oldest first.
    replies: VecDeque<reply::Kind>,
    /// The sequence number of the last command that was sent.
    last_sent: u64,
    /// The sequence number of the last command whose reply arrived.
    last_answered: u64,
    /// A failure that was received after the last reply. The next wait returns it.
    failure: Option<ShardClientError>,
    /// True if the shard has reported an error. The shard then closes the connection, which is not another failure.
    has_complained: bool,
    /// The time since the last message of the shard.
    silence: AwakeTime,
    /// The time since the shard's last progress with a command, or since the command became the oldest.
    standstill: AwakeTime,
    /// The progress of the last beat.
    progress: u64,
}

impl Connection {
    /// Connects to a shard. Tries again until the shard listens.
    ///
    /// # Errors
    /// When the shard does not listen within `deadline`.
    pub(super) async fn connect(endpoint: &Endpoint, shard: u32, deadline: Duration) -> Result<Self, ShardClientError> {
        let give_up_at = Instant::now() + deadline;
        loop {
            let connected = timeout_at(give_up_at, Socket::connect(endpoint)).await;
            match connected.unwrap_or_else(|elapsed| Err(elapsed.into())) {
                Ok(stream) => {
                    return Ok(Self {
                        shard,
                        stream,
                        buffer: Vec::new(),
                        replies: VecDeque::new(),
                        last_sent: 0,
                        last_answered: 0,
                        failure: None,
                        has_complained: false,
                        silence: AwakeTime::start(now()),
                        standstill: AwakeTime::start(now()),
                        progress: 0,
                    });
                }
                Err(source) if Instant::now() >= give_up_at => {
                    let endpoint = endpoint.clone();
                    return Err(ShardClientError::Connect { shard, endpoint, after: deadline, source });
                }
                Err(_) => tokio::time::sleep(CONNECT_RETRY).await,
            }
        }
    }

    /// Sends the frame of a command. `sequence_number` counts commands from 1. A shard in a long step takes nothing, so
    /// its messages are received meanwhile, and `deadline` counts as in [`wait_for_answer`](Self::wait_for_answer). The
    /// future must not be dropped before it completes.
    ///
    /// # Errors
    /// As for [`wait_for_answer`](Self::wait_for_answer), and when the socket fails or is closed.
    pub(super) async fn send(
        &mut self,
        sequence_number: u64,
        frame: &[u8],
        deadline: Duration,
    ) -> Result<(), ShardClientError> {
        self.last_sent = sequence_number;
        let mut unsent = frame;
        while !unsent.is_empty() {
            match timeout(TICK, self.stream.write(unsent)).await {
                Ok(Ok(0)) => return Err(ShardClientError::Closed { shard: self.shard }),
                Ok(Ok(num_bytes)) => unsent = &unsent[num_bytes..],
                // The shard may have sent the reason before it closed the connection.
                Ok(Err(error)) if is_closed(&error) => {
                    let closed = ShardClientError::Closed { shard: self.shard };
                    return Err(timeout(deadline::CAUSE, self.broken()).await.unwrap_or(closed));
                }
                Ok(Err(source)) => return Err(ShardClientError::Io { shard: self.shard, source }),
                Err(_) => {
                    while let Some(received) = self.receive().now_or_never() {
                        received?;
                    }
                    self.look_at_clocks()?;
                    if self.standstill.elapsed() >= deadline {
                        return Err(ShardClientError::timeout("", deadline));
                    }
                }
            }
        }
        Ok(())
    }

    /// Begins the wait for the reply to a command, which has become the oldest one.
    pub(super) fn begin_wait(&mut self) {
        self.standstill.restart(now());
    }

    /// Waits until there is a reply to take. `deadline` counts from [`begin_wait`](Self::begin_wait), or from the last
    /// progress if that is later. This wait is safe to abandon and to begin again.
    ///
    /// # Errors
    /// When the shard makes no progress for `deadline` or is silent, or it replies with an error.
    /// [`ShardClientError::Timeout`] does not name the shard here; the group fills in the name.
    pub(super) async fn wait_for_answer(&mut self, deadline: Duration) -> Result<(), ShardClientError> {
        while self.replies.is_empty() {
            if self.standstill.elapsed() >= deadline {
                return Err(ShardClientError::timeout("", deadline));
            }
            self.receive_or_tick().await?;
        }
        Ok(())
    }

    /// Receives replies until the shard fails or is silent. If no command is under way, any reply is a failure. Safe to
    /// abandon.
    ///
    /// # Errors
    /// Always: the failure of the shard.
    pub(super) async fn watch(&mut self) -> Result<Infallible, ShardClientError> {
        loop {
            self.receive_or_tick().await?;
        }
    }

    /// True if the shard gave no sign of life for so long that it counts as hanging.
    pub(super) fn is_silent(&self) -> bool {
        self.silence.elapsed() >= SILENCE_DEADLINE
    }

    /// True if beats of the shard are missing.
    pub(super) fn is_doubtful(&self) -> bool {
        self.silence.elapsed() >= DOUBT
    }

    /// Receives one message, for at most a tick. Safe to abandon.
    ///
    /// # Errors
    /// As [`receive`](Self::receive), and when the shard is silent.
    async fn receive_or_tick(&mut self) -> Result<(), ShardClientError> {
        // The clocks are read here too, because a wait may always be abandoned before its tick, and only after what
        // came while this process did not run is read.
        if let Some(received) = self.receive().now_or_never() {
            return received;
        }
        self.look_at_clocks()?;
        timeout(TICK, self.receive()).await.unwrap_or(Ok(()))
    }

    /// Notes the time in which nothing came.
    ///
    /// # Errors
    /// When the shard is silent.
    fn look_at_clocks(&mut self) -> Result<(), ShardClientError> {
        self.standstill.look(now());
        self.silence.look(now());
        match self.is_silent() {
            true => Err(ShardClientError::Silent { shards: self.shard.to_string(), after: SILENCE_DEADLINE }),
            false => Ok(()),
        }
    }

    /// Stores a failure, which the next wait returns.
    pub(super) fn keep(&mut self, failure: ShardClientError) {
        self.failure = Some(failure);
    }

    /// True if a reply waits to be taken.
    pub(super) fn has_answered(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Takes the oldest reply.
    pub(super) fn take_answer(&mut self) -> Option<reply::Kind> {
        self.replies.pop_front()
    }

    /// Receives one message and stores it if it is a reply. Safe to abandon.
    ///
    /// # Errors
    /// When the connection fails, the message is an error of the shard, or the message is not the expected reply.
    async fn receive(&mut self) -> Result<(), ShardClientError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let Reply { sequence_number: got, kind } = self.read_frame().await?;
        self.silence.restart(now());
        let (shard, expected) = (self.shard, self.last_answered + 1);
        match kind {
            Some(reply::Kind::Error(error)) => {
                self.has_complained = true;
                Err(ShardClientError::Shard { shard, error })
            }
            Some(reply::Kind::Beat(Beat { progress })) => {
                if std::mem::replace(&mut self.progress, progress) != progress {
                    self.standstill.restart(now());
                }
                Ok(())
            }
            _ if got != expected => Err(ShardClientError::SequenceNumber { shard, expected, got }),
            Some(kind) if expected > self.last_sent => Err(unexpected(shard, "nothing", &kind)),
            // Progress is only a sign of life here, because the shard logs it itself.
            Some(reply::Kind::Progress(_)) => {
                self.standstill.restart(now());
                Ok(())
            }
            Some(kind) => {
                self.last_answered = expected;
                self.replies.push_back(kind);
                Ok(())
            }
            None => Err(ShardClientError::Unexpected { shard, command: "a command", got: "an empty reply" }),
        }
    }

    /// Waits until the connection fails or the shard reports an error, and ignores replies. Waits forever if the shard
    /// has already reported an error. Safe to abandon.
    pub(super) async fn broken(&mut self) -> ShardClientError {
        let shard = self.shard;
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
                    return ShardClientError::Shard { shard, error };
                }
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    async fn read_frame(&mut self) -> Result<Reply, ShardClientError> {
        let shard = self.shard;
        loop {
            if let Some(reply) = self.take_frame()? {
                return Ok(reply);
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(ShardClientError::Closed { shard }),
                Ok(_) => {}
                Err(error) if is_closed(&error) => return Err(ShardClientError::Closed { shard }),
                Err(source) => return Err(ShardClientError::Io { shard, source }),
            }
        }
    }

    fn take_frame(&mut self) -> Result<Option<Reply>, ShardClientError> {
        let frame_error = |source| ShardClientError::Frame { shard: self.shard, source };
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

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// True if the error means that the shard has closed the connection. Linux reports such errors if the shard left
/// commands unread.
fn is_closed(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe)
}
