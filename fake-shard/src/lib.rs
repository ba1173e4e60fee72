//! Support for tests of asynchronous code: a shard without a model, and waits with a deadline.

#![forbid(unsafe_code)]

mod shard;
mod waits;

pub use shard::{BLOCK_SIZE, Fails, FakeShard, NextToken, ShardStats, hash_of_tokens};
pub use waits::{DEADLINE, until, until_async, within};

/// The number of tokens in the demo model's vocabulary.
pub const VOCAB_SIZE: u32 = 1536;
