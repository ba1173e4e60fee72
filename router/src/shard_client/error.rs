//! The errors between the router and its shards, and the rule that finds the cause among several.

use std::time::Duration;

use endpoint::Endpoint;
use proto::shard_error::Kind;
use proto::{FrameError, ShardError, exit_status, reply};

/// An error between the router and a shard. After any of these the conversation is over.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum ShardClientError {
    #[error("no connection to shard {rank} at {endpoint} within {} s", .after.as_secs())]
    Connect { rank: u32, endpoint: Endpoint, after: Duration, source: std::io::Error },
    #[error("shard {ranks} did not answer {command} within {:.1} s", .after.as_secs_f64())]
    Timeout { ranks: String, command: &'static str, after: Duration },
    #[error("shard {rank} closed the connection")]
    Closed { rank: u32 },
    #[error("exchange messages with shard {rank}")]
    Io { rank: u32, source: std::io::Error },
    #[error("shard {rank} sent a message that is not a reply")]
    Frame { rank: u32, source: FrameError },
    #[error("shard {rank}: {error}")]
    Shard { rank: u32, error: ShardError },
    #[error("shard {rank} answered {command} with {got}")]
    Unexpected { rank: u32, command: &'static str, got: &'static str },
    #[error("shard {rank} answered command {got}, but the router sent command {expected}")]
    SequenceNumber { rank: u32, expected: u64, got: u64 },
    #[error(
        "shard {rank} speaks version {got} of the protocol, this router speaks {expected}; use one release \
         for all of them"
    )]
    Version { rank: u32, expected: u32, got: u32 },
    #[error("the shard at socket {rank} is rank {got_rank} of {got_world_size}, expected rank {rank} of {world_size}")]
    Rank { rank: u32, world_size: u32, got_rank: u32, got_world_size: u32 },
    #[error("shard {rank} has another model or other settings than shard 0; start all shards with the same arguments")]
    ConfigHash { rank: u32 },
    #[error("shard {rank} has {problem}")]
    Devices { rank: u32, problem: String },
    #[error(
        "shard {rank} ran something else than shard 0: its fingerprint is {got:016x}, that of shard 0 is \
         {expected:016x}"
    )]
    Fingerprint { rank: u32, expected: u64, got: u64 },
    #[error("shard {rank} was warmed up with other limits than the router sent")]
    Limits { rank: u32 },
}

impl ShardClientError {
    /// A timeout without ranks; the caller adds them.
    pub(super) fn timeout(command: &'static str, after: Duration) -> Self {
        Self::Timeout { ranks: String::new(), command, after }
    }

    /// Returns how well the error explains the failure.
    pub(super) fn certainty(&self) -> Certainty {
        match self {
            Self::Timeout { .. } => Certainty::Silence,
            Self::Shard { error, .. } if error.kind() == Kind::Aborted => Certainty::Hearsay,
            Self::Shard { error, .. } if error.kind() == Kind::Peer => Certainty::Complaint,
            Self::Shard { .. }
            | Self::Connect { .. }
            | Self::Closed { .. }
            | Self::Io { .. }
            | Self::Frame { .. }
            | Self::Unexpected { .. }
            | Self::SequenceNumber { .. }
            | Self::Version { .. }
            | Self::Rank { .. }
            | Self::ConfigHash { .. }
            | Self::Devices { .. }
            | Self::Fingerprint { .. }
            | Self::Limits { .. } => Certainty::Cause,
        }
    }

    /// The exit status of a process that this error ends.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Shard { error, .. } if matches!(error.kind(), Kind::Model | Kind::OutOfMemory) => {
                exit_status::CONFIGURATION
            }
            _ => exit_status::DEVICE,
        }
    }
}

/// How well an error explains a failure, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Certainty {
    /// No rank replies.
    Silence,
    /// A rank was told to stop waiting.
    Hearsay,
    /// A rank names another rank for which it waited in vain.
    Complaint,
    /// The error is the cause.
    Cause,
}

/// The error when `got` is not a reply to `command`.
pub(super) fn unexpected(rank: u32, command: &'static str, got: &reply::Kind) -> ShardClientError {
    let got = match got {
        reply::Kind::Hello(_) => "a greeting",
        reply::Kind::Info(_) => "facts of the model",
        reply::Kind::Progress(_) => "progress",
        reply::Kind::Fit(_) => "limits",
        reply::Kind::Warmup(_) => "the result of a warm-up",
        reply::Kind::Step(_) => "the tokens of a step",
        reply::Kind::StepDone(_) => "the end of a step",
        reply::Kind::Done(_) => "done",
        reply::Kind::Error(_) => "an error",
    };
    ShardClientError::Unexpected { rank, command, got }
}
