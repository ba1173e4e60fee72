//! Connections that block.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::Endpoint;

/// A connection.
#[derive(Debug)]
#[expect(missing_docs, reason = "the variants are those of `Endpoint`")]
pub enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Endpoint {
    /// Connects; a host that does not answer is waited for as long as the system waits.
    ///
    /// # Errors
    /// When nobody listens there, or it cannot be reached.
    pub fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Self::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port))?;
                // On loopback, the system may choose the very port that is asked for as the connection's own.
                if stream.local_addr()? == stream.peer_addr()? {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                Stream::from_tcp(stream)
            }
        }
    }
}

impl Stream {
    /// A command is a small packet: it must not wait for the next one.
    pub(crate) fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Bounds each read; `None` waits for ever.
    ///
    /// # Errors
    /// When the time is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(timeout),
            Self::Tcp(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// Bounds each write; `None` waits for ever.
    ///
    /// # Errors
    /// When the time is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_write_timeout(timeout),
            Self::Tcp(stream) => stream.set_write_timeout(timeout),
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
