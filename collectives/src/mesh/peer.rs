//! The connection to one other rank: a message that is sent, and one that is received, both in pieces.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::message::{HEADER_BYTES, Header};

/// The state of the message that a peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// Some of its bytes have not arrived.
    Partial,
    /// Its header is not the expected one. Nothing after the header is read.
    Other(Option<Header>),
    /// All of its bytes have arrived.
    Complete,
    /// The peer has closed the connection.
    Closed,
    /// The connection has failed.
    Failed(Errno),
}

/// The connection to another rank.
#[derive(Debug)]
pub(super) struct Peer {
    socket: OwnedFd,
    /// The message to send, and the number of its bytes that the system has taken.
    outgoing: Vec<u8>,
    num_sent: usize,
    /// The message to receive, and the number of its bytes that have arrived.
    incoming: Vec<u8>,
    num_received: usize,
    expected: [u8; HEADER_BYTES],
    /// The values of the message that has been received.
    values: Vec<f32>,
}

impl Peer {
    /// Takes a connected stream socket.
    ///
    /// # Errors
    /// When the socket cannot be made non-blocking.
    pub(super) fn new(socket: OwnedFd) -> Result<Self, Errno> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket,
            outgoing: Vec::new(),
            num_sent: 0,
            incoming: Vec::new(),
            num_received: 0,
            expected: [0; HEADER_BYTES],
            values: Vec::new(),
        })
    }

    /// Begins an exchange: sends `values` after `header`, and expects the same header followed by `num_expected`
    /// values.
    pub(super) fn begin(&mut self, header: Header, values: &[f32], num_expected: usize) {
        self.expected = header.encode();
        self.outgoing.clear();
        self.outgoing.extend_from_slice(&self.expected);
        self.outgoing.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.num_sent = 0;
        self.incoming.resize(HEADER_BYTES + size_of::<f32>() * num_expected, 0);
        self.num_received = 0;
    }

    pub(super) fn has_sent(&self) -> bool {
        self.num_sent == self.outgoing.len()
    }

    pub(super) fn has_received(&self) -> bool {
        self.num_received == self.incoming.len()
    }

    /// Sends as many bytes as the system takes without waiting.
    ///
    /// # Errors
    /// When the connection has failed. The reason may still be unread.
    pub(super) fn send(&mut self) -> Result<(), Errno> {
        while !self.has_sent() {
            match rustix::net::send(&self.socket, &self.outgoing[self.num_sent..], SendFlags::NOSIGNAL) {
                Ok(num_bytes) => self.num_sent += num_bytes,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Receives the bytes of the expected message that have arrived. Bytes of the next message stay in the socket.
    pub(super) fn receive(&mut self) -> Incoming {
        while !self.has_received() {
            let end = if self.num_received < HEADER_BYTES { HEADER_BYTES } else { self.incoming.len() };
            match rustix::net::recv(&self.socket, &mut self.incoming[self.num_received..end], RecvFlags::empty()) {
                Ok((0, _)) => return Incoming::Closed,
                Ok((num_bytes, _)) => self.num_received += num_bytes,
                Err(Errno::AGAIN) => return Incoming::Partial,
                Err(Errno::INTR) => continue,
                // Linux reports this if the peer left bytes unread.
                Err(Errno::CONNRESET) => return Incoming::Closed,
                Err(errno) => return Incoming::Failed(errno),
            }
            let (header, _) = self.incoming.as_chunks::<HEADER_BYTES>();
            if self.num_received == HEADER_BYTES && header[0] != self.expected {
                return Incoming::Other(Header::decode(&header[0]));
            }
            if self.has_received() {
                let (values, _) = self.incoming[HEADER_BYTES..].as_chunks::<4>();
                self.values.clear();
                self.values.extend(values.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
        }
        Incoming::Complete
    }

    /// Returns the rank that has ended the group, if the peer has said so after a complete message. Takes no bytes,
    /// which may belong to the next operation.
    pub(super) fn abort_after_message(&self) -> Option<usize> {
        let mut header = [0; HEADER_BYTES];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.socket, &mut header[..], flags) {
            Ok((HEADER_BYTES, _)) => match Header::decode(&header) {
                Some(Header::Abort { rank }) => Some(rank),
                _ => None,
            },
            _ => None,
        }
    }

    /// The values of the message that has been received.
    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Tells the peer which rank has ended the group, if no message is half sent, and sends nothing more.
    pub(super) fn abort(&mut self, rank: usize) {
        if self.has_sent() {
            let _ = rustix::net::send(&self.socket, &Header::Abort { rank }.encode(), SendFlags::NOSIGNAL);
        }
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
