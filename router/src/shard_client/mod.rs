//! The router's side of the conversation in `proto`: connect, handshake, call with a deadline.
//!
//! [`ShardGroup`] is what others see: all ranks of a model as one. It never decides what to run.

mod connection;
mod group;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use proto::{FrameError, ShardError};

pub(crate) use group::ShardGroup;

/// What goes wrong between the router and a shard. After any of these the conversation is over.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum ShardClientError {
    #[error("connect to shard {rank} at {path} within {} s", .after.as_secs())]
    Connect { rank: u32, path: PathBuf, after: Duration, source: std::io::Error },
    #[error("shard {rank} did not answer {command} within {} s", .after.as_secs())]
    Timeout { rank: u32, command: &'static str, after: Duration },
    #[error("shard {rank} closed the connection")]
    Closed { rank: u32 },
    #[error("talk to shard {rank}")]
    Io { rank: u32, source: std::io::Error },
    #[error("shard {rank} sent what is no reply")]
    Frame { rank: u32, source: FrameError },
    #[error("shard {rank}: {error}")]
    Shard { rank: u32, error: ShardError },
    #[error("shard {rank} answered {command} with {got}")]
    Unexpected { rank: u32, command: &'static str, got: &'static str },
    #[error("shard {rank} answered command {got} while {expected} was asked")]
    SequenceNumber { rank: u32, expected: u64, got: u64 },
    #[error("shard {rank} speaks version {got} of the protocol, this router speaks {expected}")]
    Version { rank: u32, expected: u32, got: u32 },
    #[error("the shard at socket {rank} is rank {got_rank} of {got_world_size}, expected rank {rank} of {world_size}")]
    Rank { rank: u32, world_size: u32, got_rank: u32, got_world_size: u32 },
    #[error("shard {rank} has another model or other settings than shard 0")]
    ConfigHash { rank: u32 },
}
