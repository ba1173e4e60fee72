//! Addresses at which one process listens and other processes connect: the path of a Unix socket, or a TCP host and
//! port.
//!
//! Entry points: [`Endpoint`], which is parsed from text, connects and listens; [`Listener`] and [`Stream`], whose
//! calls block; [`WaitingRoom`], which says who goes when the places of a door are short. Shards listen for the router,
//! the router listens for clients, and the launcher connects to both. TLS and asynchronous sockets are in the router,
//! not here.

#![forbid(unsafe_code)]

mod address;
mod listener;
mod socket_file;
mod stream;
mod waiting_room;

pub use address::{AddressError, Endpoint};
pub use listener::{ListenError, Listener};
pub use socket_file::SocketFile;
pub use stream::Stream;
pub use waiting_room::{Dismissal, Ticket, WaitingRoom};
