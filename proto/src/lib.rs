//! The contract between the router and the shards, as plain messages. This crate does no I/O, and no message contains a
//! tensor or the text of a user.
//!
//! ```text
//!  client (launcher, then router)                         shard
//!    Hello { protocol_version, build }      ──────▶
//!                                           ◀──────  Progress*              while weights load
//!                                           ◀──────  HelloReply             ready
//!                                           ◀──────  Beat*                  from now on, about once a second
//!    Info                                   ──────▶
//!                                           ◀──────  ModelInfo
//!    Fit { wishes }                         ──────▶                         sizes that would fit; no allocation
//!                                           ◀──────  StepSizes
//!    Warmup { limits }                      ──────▶
//!                                           ◀──────  Progress*              at least once a second
//!                                           ◀──────  WarmupReply            slots and blocks the client now owns
//!    Step { rows }                          ──────▶                         opens rows, reads and samples tokens
//!                                           ◀──────  StepReply              StepDone from all shards but 0
//!    Release { slots }                      ──────▶
//!                                           ◀──────  Done
//!    Leave                                  ──────▶
//!                                           ◀──────  Done                   the shard exits with status 0
//! ```
//!
//! The router sends every command to every shard of a model, in the same order. A client may send the next command
//! before the reply to the previous one arrives. The reply to any command may be a [`ShardError`]; programs react only
//! to the kind of the error, and its message is for people. If one row of a step fails, the reply is not a
//! [`ShardError`]: the reply of shard 0 names the row ([`RowFailure`]), and the other rows continue. Replies arrive in
//! the order of the commands and carry their sequence numbers. If a client closes its connection after the warm-up
//! without `Leave`, the shard ends, because no client owns the KV cache any more.

pub mod exit_status;
pub mod frame;
mod sampling;
mod sampling_error;

mod message {
    include!(concat!(env!("OUT_DIR"), "/hilo.v1.rs"));
}

pub use frame::{
    FrameError, HEADER_BYTES, MAX_FRAME_BYTES, MAX_SEQUENCE_TOKENS, MAX_STEP_BYTES, MAX_VOCAB_SIZE, TOKEN_BYTES,
};
pub use message::*;
pub use sampling::{MAX_HELD_BACK_TOKENS, MAX_LOGIT_BIASES, MAX_TIED_TOKENS};
pub use sampling_error::SamplingError;

/// The version of this contract. If the client has another version, the shard replies with the error `VERSION`.
pub const PROTOCOL_VERSION: u32 = 9;

/// The maximum number of most probable tokens that are reported for each token of a prompt. It is limited because a
/// reply contains those of a whole chunk and must fit in a frame.
pub const MAX_PROMPT_TOP_N_TOKENS: u32 = 20;

/// The maximum length of a Unix socket's path, in bytes: `sun_path` has 108 bytes including the final zero (`unix(7)`).
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Returns the path of one shard's socket: `<shard-uds-path>-<shard>`, as TGI names it.
pub fn socket_path(shard_uds_path: &str, shard: u32) -> String {
    format!("{shard_uds_path}-{shard}")
}

impl Row {
    /// The number of tokens that the row reads: those in `token_ids`, or if there are none, the one token that it
    /// sampled in its previous step.
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len().max(1)
    }

    /// True if the row reads the token that it sampled in its previous step.
    pub fn reads_sampled(&self) -> bool {
        self.token_ids.is_empty()
    }
}

impl SampledToken {
    /// The ids of the most probable tokens, the best first. Empty if none were asked for.
    pub fn top_token_ids(&self) -> &[u32] {
        self.top_tokens.as_ref().map_or(&[], |top| &top.token_ids)
    }

    /// The log-probabilities of the most probable tokens, in the order of [`Self::top_token_ids`].
    pub fn top_logprobs(&self) -> &[f32] {
        self.top_tokens.as_ref().map_or(&[], |top| &top.logprobs)
    }
}

impl ShardError {
    /// Returns an error of this kind. `message` is for people.
    pub fn new(kind: shard_error::Kind, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: message.into() }
    }
}

impl std::fmt::Display for ShardError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ShardError {}
