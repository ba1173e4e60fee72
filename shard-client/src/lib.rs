//! The router's side of the protocol in `proto`: connecting, the handshake and steps. Each wait for a reply has a
//! deadline.
//!
//! The entry point is [`ShardGroup`], which presents all shards of a model as one. It does not decide what the shards
//! run.

#![forbid(unsafe_code)]

mod connection;
mod deadline;
mod device_table;
mod error;
mod group;
mod handshake;
#[cfg(test)]
mod tests;

pub use error::ShardClientError;
pub use group::ShardGroup;
