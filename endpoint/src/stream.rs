//! Connections. Their calls block.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::Endpoint;

/// A connection to either kind of endpoint.
#[derive(Debug)]
#[expect(missing_docs, reason = "the variants are those of `Endpoint`")]
pub enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Endpoint {
    /// Connects to the endpoint. The system decides how long to wait for a host that does not respond.
    ///
    /// # Errors
    /// When no process listens at the endpoint, this process may not connect to it, or the host cannot be looked up or
    /// reached.
    pub fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Self::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port))?;
                // On loopback, if no process listens, the system may pick the requested port as the local port too. The
                // socket is then connected to itself (TCP self-connect).
                if stream.local_addr()? == stream.peer_addr()? {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                Stream::from_tcp(stream)
            }
        }
    }
}

impl Stream {
    /// Wraps a TCP connection and disables Nagle's algorithm, because a command is a small packet and must not wait
    /// until the peer has acknowledged the one before.
    pub(crate) fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Returns another handle of the same connection.
    ///
    /// # Errors
    /// When the process has too many open files.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
        }
    }

    /// Ends the reading half, the writing half or both, for all handles of the connection.
    ///
    /// # Errors
    /// When the connection has already ended.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tcp(stream) => stream.shutdown(how),
        }
    }

    /// Sets the maximum time of each read; `None` means no limit.
    ///
    /// # Errors
    /// When the timeout is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(timeout),
            Self::Tcp(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// Sets the maximum time of each write; `None` means no limit.
    ///
    /// # Errors
    /// When the timeout is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_write_timeout(timeout),
            Self::Tcp(stream) => stream.set_write_timeout(timeout),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(buffer),
            Self::Tcp(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.flush(),
            Self::Tcp(stream) => stream.flush(),
        }
    }
}
