//! The router's side of the protocol in `proto`: connecting, the handshake and steps. Each wait for a reply has a
//! deadline.
//!
//! The rest of the router uses [`ShardGroup`], which presents all shards of a model as one. The group does not decide
//! what the shards run.

mod connection;
mod deadline;
mod device_table;
mod error;
mod group;
mod handshake;
#[cfg(test)]
mod tests;

pub use error::ShardClientError;
pub(crate) use group::ShardGroup;
