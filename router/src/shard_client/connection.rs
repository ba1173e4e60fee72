//! One rank's socket: frames out, frames in.
//!
//! Reading may be abandoned at any point without losing a byte: what came so far stays in the buffer. It knows
//! commands and replies as bytes and numbers only, not what they mean, and has no deadline of its own after the
//! connection.

use std::path::PathBuf;
use std::time::Duration;

use proto::{Command, HEADER_BYTES, Reply, command, frame, reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::ShardClientError;

/// A socket that is not there yet is looked for again after this long.
const CONNECT_RETRY: Duration = Duration::from_millis(50);

/// A connection to one shard.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) rank: u32,
    stream: UnixStream,
    /// Bytes read that are no whole frame.
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects as soon as the socket is there.
    ///
    /// # Errors
    /// When it is not within `deadline`.
    pub(super) async fn connect(shard_uds_path: &str, rank: u32, deadline: Duration) -> Result<Self, ShardClientError> {
        let path = PathBuf::from(proto::socket_path(shard_uds_path, rank));
        let give_up_at = Instant::now() + deadline;
        loop {
            match UnixStream::connect(&path).await {
                Ok(stream) => {
                    return Ok(Self { rank, stream, buffer: Vec::new() });
                }
                Err(source) if Instant::now() >= give_up_at => {
                    return Err(ShardClientError::Connect { rank, path, after: deadline, source });
                }
                Err(_) => tokio::time::sleep(CONNECT_RETRY).await,
            }
        }
    }

    /// Sends commands in one piece, numbered from `first_number`.
    ///
    /// # Errors
    /// When the socket or a frame's size does not allow it.
    pub(super) async fn send(&mut self, first_number: u64, commands: &[command::Kind]) -> Result<(), ShardClientError> {
        let rank = self.rank;
        let mut buffer = Vec::new();
        for (sequence_number, kind) in (first_number..).zip(commands) {
            let command = Command { sequence_number, kind: Some(kind.clone()) };
            frame::encode(&command, &mut buffer).map_err(|source| ShardClientError::Frame { rank, source })?;
        }
        self.stream.write_all(&buffer).await.map_err(|source| ShardClientError::Io { rank, source })
    }

    /// The reply to the command of this number; an error the shard answers is an error here.
    ///
    /// # Errors
    /// When there is none.
    pub(super) async fn receive(&mut self, expected: u64) -> Result<reply::Kind, ShardClientError> {
        let rank = self.rank;
        let Reply { sequence_number: got, kind } = self.read_frame().await?;
        match kind {
            Some(reply::Kind::Error(error)) => Err(ShardClientError::Shard { rank, error }),
            _ if got != expected => Err(ShardClientError::SequenceNumber { rank, expected, got }),
            Some(kind) => Ok(kind),
            None => Err(ShardClientError::Unexpected { rank, command: "a command", got: "an empty reply" }),
        }
    }

    /// The next frame. Safe to abandon: what was read stays in the buffer.
    async fn read_frame(&mut self) -> Result<Reply, ShardClientError> {
        let rank = self.rank;
        loop {
            if let Some(reply) = self.take_frame()? {
                return Ok(reply);
            }
            let num_bytes = self.stream.read_buf(&mut self.buffer).await;
            if num_bytes.map_err(|source| ShardClientError::Io { rank, source })? == 0 {
                return Err(ShardClientError::Closed { rank });
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
