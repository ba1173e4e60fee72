//! Addresses at which one process listens and others connect: a Unix path, or a host and port on TCP.
//!
//! Doors: [`Endpoint`] parses, connects and listens; [`Listener`] and [`Stream`] block. Shards listen for the router,
//! the router listens for clients, and the launcher connects to both. TLS and tokio stay in the router.

#![forbid(unsafe_code)]

mod address;
mod listener;
mod socket_file;
mod stream;

pub use address::{AddressError, Endpoint};
pub use listener::{ListenError, Listener};
pub use socket_file::SocketFile;
pub use stream::Stream;
