//! The router's side of the conversation in `proto`: connect, handshake, steps, each wait with a deadline.
//!
//! The rest of the router sees [`ShardGroup`]: all ranks of a model as one. It never decides what to run.

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
