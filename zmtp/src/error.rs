//! Errors of the protocol. Each ends the connection.

use crate::{MAX_FRAME_BYTES, MAX_FRAMES};

/// The reason why a peer is sent away.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum ZmtpError {
    #[error("the peer does not speak ZeroMQ's protocol")]
    NotZmtp,
    #[error("the peer speaks version {0} of ZeroMQ's protocol; version 3 or newer is needed, as in libzmq 4")]
    Version(u8),
    #[error("the peer wants the security mechanism {0:?}; only NULL is supported")]
    Mechanism(String),
    #[error("the peer's socket is of type {theirs:?}; this socket serves {ours}")]
    SocketType { theirs: String, ours: &'static str },
    #[error("a frame has {0} bytes; at most {MAX_FRAME_BYTES} are allowed")]
    FrameTooLong(u64),
    #[error("a message has more than {MAX_FRAMES} frames")]
    TooManyFrames,
    #[error("the flags {0:#04x} of a frame are not valid")]
    Flags(u8),
    #[error("a command is not valid: {0}")]
    Command(&'static str),
    #[error("the peer reports an error: {0}")]
    Peer(String),
}
