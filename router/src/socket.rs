//! A client's connection that several may look at: who serves it reads and writes, and who works for it asks whether the client is
//! still there.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use crate::http_listener::ClientStream;

/// The connection. Cloning is cheap, and both are the same.
#[derive(Debug, Clone)]
pub(crate) struct Socket(Arc<ClientStream>);

impl Socket {
    pub(crate) fn new(stream: ClientStream) -> Self {
        Self(Arc::new(stream))
    }

    /// Waits until the client has closed the connection, or its half of it, whatever it sent before.
    pub(crate) async fn closed(self) {
        // Interest in urgent data is woken by nothing else: what is there to read says nothing of the end behind it.
        match self.0.ready(Interest::PRIORITY).await {
            Ok(ready) if !ready.is_read_closed() => std::future::pending().await,
            Ok(_) | Err(_) => {}
        }
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
