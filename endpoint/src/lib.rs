//! An address of ours, which is a Unix path or TCP: the place where one process listens and others connect.
//!
//! Doors: [`Endpoint`] parses, connects and listens; [`Listener`] and [`Stream`] block. Shards listen for the router
//! this way, the router for clients, and the launcher asks both. TLS and tokio stay in the router.

#![forbid(unsafe_code)]

mod address;
mod listener;
mod socket_file;
mod stream;

pub use address::{AddressError, Endpoint};
pub use listener::{ListenError, Listener};
pub use socket_file::SocketFile;
pub use stream::Stream;
