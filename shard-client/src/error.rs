//! The errors between the router and its shards, and the ranking that finds the cause among several errors.

use std::time::Duration;

use endpoint::Endpoint;
use proto::shard_error::Kind;
use proto::{FrameError, ShardError, exit_status, reply};

/// An error between the router and a shard. After such an error, the router sends no more commands to any shard.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum ShardClientError {
    #[error("no connection to shard {shard} at {endpoint} within {} s", .after.as_secs())]
    Connect { shard: u32, endpoint: Endpoint, after: Duration, source: std::io::Error },
    #[error("shard {shards} made no progress with {command} for {:.1} s", .after.as_secs_f64())]
    Timeout { shards: String, command: &'static str, after: Duration },
    #[error("shard {shards} gave no sign of life for {} s", .after.as_secs())]
    Silent { shards: String, after: Duration },
    #[error("shard {shard} closed the connection")]
    Closed { shard: u32 },
    #[error("messages cannot be exchanged with shard {shard}")]
    Io { shard: u32, source: std::io::Error },
    #[error("shard {shard} sent a message that is not a reply")]
    Frame { shard: u32, source: FrameError },
    #[error("shard {shard}: {error}")]
    Shard { shard: u32, error: ShardError },
    #[error("shard {shard} answered {command} with {got}, which is a defect of this server")]
    Unexpected { shard: u32, command: &'static str, got: &'static str },
    #[error(
        "shard {shard} answered command {got}, but the router sent command {expected}, which is a defect of this server"
    )]
    SequenceNumber { shard: u32, expected: u64, got: u64 },
    #[error(
        "shard {shard} speaks version {got} of the protocol, but this router speaks version {expected}; use one \
         release for the router and all shards"
    )]
    Version { shard: u32, expected: u32, got: u32 },
    #[error(
        "the shard at socket {shard} is shard {got_shard} of {got_num_shards}, but shard {shard} of \
         {num_shards} was expected"
    )]
    WrongShard { shard: u32, num_shards: u32, got_shard: u32, got_num_shards: u32 },
    #[error(
        "shard {shard} has another model, other settings or another instruction set than shard 0; start all shards with \
         the same arguments and files, and with --cpu-isa on CPUs of several kinds"
    )]
    ConfigHash { shard: u32 },
    #[error("shard {shard} has {problem}")]
    Devices { shard: u32, problem: String },
    #[error(
        "shard {shard} ran other programs or inputs than shard 0: its fingerprint is {got:016x}, but that of \
         shard 0 is {expected:016x}"
    )]
    Fingerprint { shard: u32, expected: u64, got: u64 },
    #[error("shard {shard} was warmed up with other limits than the router sent, which is a defect of this server")]
    Limits { shard: u32 },
}

impl ShardClientError {
    /// Returns a timeout that names no shards yet; `ShardGroup::known_cause` fills them in.
    pub(super) fn timeout(command: &'static str, after: Duration) -> Self {
        Self::Timeout { shards: String::new(), command, after }
    }

    /// Returns how likely the error is to be the cause of the failure, rather than a symptom.
    pub(super) fn certainty(&self) -> Certainty {
        match self {
            Self::Timeout { .. } | Self::Silent { .. } => Certainty::Silence,
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
            | Self::WrongShard { .. }
            | Self::ConfigHash { .. }
            | Self::Devices { .. }
            | Self::Fingerprint { .. }
            | Self::Limits { .. } => Certainty::Cause,
        }
    }

    /// Returns the exit status of a router that this error ends.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Shard { error, .. } if matches!(error.kind(), Kind::Model | Kind::OutOfMemory) => {
                exit_status::CONFIGURATION
            }
            _ => exit_status::DEVICE,
        }
    }
}

/// How likely an error is to be the cause of a failure, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Certainty {
    /// A reply did not arrive in time.
    Silence,
    /// A shard was aborted by another shard.
    Hearsay,
    /// A shard names a rank for which it waited in vain.
    Complaint,
    /// The error is the cause.
    Cause,
}

/// Returns the error for a reply `got` that does not belong to `command`.
pub(super) fn unexpected(shard: u32, command: &'static str, got: &reply::Kind) -> ShardClientError {
    let got = match got {
        reply::Kind::Hello(_) => "a greeting",
        reply::Kind::Info(_) => "facts of the model",
        reply::Kind::Progress(_) => "progress",
        reply::Kind::Fit(_) => "limits",
        reply::Kind::Warmup(_) => "the result of a warm-up",
        reply::Kind::Step(_) => "the tokens of a step",
        reply::Kind::StepDone(_) => "the end of a step",
        reply::Kind::Beat(_) => "a beat",
        reply::Kind::Done(_) => "done",
        reply::Kind::Error(_) => "an error",
    };
    ShardClientError::Unexpected { shard, command, got }
}
