//! For tests only: a shard without a model, and a server in this process that uses it.
//!
//! The released program does not contain this folder.

mod harmony;
mod server;

pub(crate) use fake_shard::{DEADLINE, FakeShard, VOCAB_SIZE, hash_of_tokens, until, until_async, within};
pub(crate) use harmony::harmony_files;
pub(crate) use server::{Answer, TestServer, args, config, json, start};

use crate::config::RequestLimits;

/// The limits of a small server.
pub(crate) fn request_limits() -> RequestLimits {
    RequestLimits {
        max_concurrent_requests: 128,
        max_best_of: 2,
        max_stop_sequences: 4,
        max_top_n_tokens: 5,
        watermark_gamma: 0.25,
        watermark_delta: 1.5,
        max_input_tokens: 20,
        max_total_tokens: 30,
        vocab_size: VOCAB_SIZE,
        num_eos_tokens: 1,
        request_timeout: None,
        num_tenants: 1,
        separates_tenants: false,
    }
}
