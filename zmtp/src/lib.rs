//! ZeroMQ's message transport protocol (ZMTP 3.1, ZeroMQ RFC 37) for one connection of a PUB or ROUTER socket, with the
//! mechanism NULL. The crate does no I/O: the caller passes received bytes in and sends the bytes that come out.
//!
//! Entry points: [`Session`], which does the handshake, collects subscriptions and requests, and responds to
//! heartbeats; [`write_message`], which encodes a message. Everything that a peer can make a session hold has a bound
//! ([`MAX_FRAME_BYTES`], [`MAX_FRAMES`]).

#![forbid(unsafe_code)]

mod command;
mod error;
mod frame;
mod greeting;
mod session;

pub use error::ZmtpError;
pub use frame::write_message;
pub use session::{Incoming, Session, SocketType};

/// The maximum size of a frame from the peer, in bytes. Subscriptions, requests and handshakes are much smaller.
pub const MAX_FRAME_BYTES: usize = 4096;

/// The maximum number of frames of a message from the peer.
pub const MAX_FRAMES: usize = 8;
