//! Asynchronous connections (of clients and to shards) and listeners, for TCP and Unix sockets.
//!
//! Several tasks may share one connection: one task reads and writes, and others check if the client has left.

#![forbid(unsafe_code)]

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use endpoint::Endpoint;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A connection. Clones are cheap and share the connection.
#[derive(Debug, Clone)]
pub struct Socket(Arc<Stream>);

/// A TCP or Unix stream.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A listener for connections.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Socket {
    pub fn new(stream: Stream) -> Self {
        Self(Arc::new(stream))
    }

    /// Connects to a shard, or to a subscriber of KV events. The system decides how long to wait for a host that does
    /// not respond.
    ///
    /// # Errors
    /// When no process listens at the endpoint, or the host cannot be reached.
    pub async fn connect(endpoint: &Endpoint) -> io::Result<Self> {
        let stream = match endpoint {
            Endpoint::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
            Endpoint::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                // On loopback, if no process listens, the system may pick the requested port as the local port too. The
                // socket is then connected to itself (TCP self-connect).
                if stream.local_addr()? == stream.peer_addr()? {
                    return Err(ErrorKind::ConnectionRefused.into());
                }
                // Disables Nagle's algorithm, because a step is a small packet and must not wait for the next one.
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
        };
        Ok(Self::new(stream))
    }

    /// The TCP connection; `None` for a Unix socket.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self.0.as_ref() {
            Stream::Tcp(stream) => Some(stream),
            Stream::Unix(_) => None,
        }
    }

    /// Waits until the client has closed the connection, or its sending half, even if received bytes are unread.
    pub async fn closed(self) {
        // Waits for urgent data or the end. Interest in reading would not work here, because unread bytes make the
        // socket readable long before the end.
        match self.0.ready(Interest::PRIORITY).await {
            Ok(ready) if !ready.is_read_closed() => std::future::pending().await,
            Ok(_) | Err(_) => {}
        }
    }
}

impl Listener {
    /// Converts a listener of the standard library.
    ///
    /// # Errors
    /// When the system refuses to make the listener non-blocking or to register it.
    pub fn from_std(listener: endpoint::Listener) -> io::Result<Self> {
        match listener {
            endpoint::Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener).map(Self::Tcp)
            }
            endpoint::Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener).map(Self::Unix)
            }
        }
    }

    /// Returns the next connection.
    ///
    /// # Errors
    /// When the connection ended before it was accepted, or the system lacks resources for it.
    pub async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

impl Stream {
    /// Waits until the stream is ready for one of the operations in `interest`.
    async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(interest).await,
            Self::Unix(stream) => stream.ready(interest).await,
        }
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    fn try_read(&self, buffer: &mut ReadBuf<'_>) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(buffer),
            Self::Unix(stream) => stream.try_read_buf(buffer),
        }
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(slices),
            Self::Unix(stream) => stream.try_write_vectored(slices),
        }
    }

    /// Tells the peer that nothing more will be written.
    fn shut_down_writing(&self) -> io::Result<()> {
        let shutdown = rustix::net::Shutdown::Write;
        let outcome = match self {
            Self::Tcp(stream) => rustix::net::shutdown(stream, shutdown),
            Self::Unix(stream) => rustix::net::shutdown(stream, shutdown),
        };
        Ok(outcome?)
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome.map(|_| ())),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(slices) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.shut_down_writing())
    }
}
