//! A stream whose other end must take what is sent to it within a time, for kinds of streams that have no such option.

use std::io::{Error, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The stream. Writing fails with [`ErrorKind::TimedOut`] when nothing could be written for the time.
pub(crate) struct TakeDeadline<S> {
    stream: S,
    time: Duration,
    /// Runs while somebody waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> TakeDeadline<S> {
    pub(crate) fn new(stream: S, time: Duration) -> Self {
        Self { stream, time, timer: None }
    }

    /// What the stream says of a write, or that it took too long.
    fn limit<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<Result<T, Error>>) -> Poll<Result<T, Error>> {
        if outcome.is_ready() {
            self.timer = None;
            return outcome;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.time)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TakeDeadline<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TakeDeadline<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Error>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.limit(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.limit(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::*;

    const TIME: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_given_up() {
        let (stream, _other_end) = duplex(4);
        let (mut stream, start) = (TakeDeadline::new(stream, TIME), Instant::now());
        let error = stream.write_all(b"12345").await.unwrap_err();
        assert_eq!((error.kind(), start.elapsed()), (ErrorKind::TimedOut, TIME));
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_a_little_now_and_then_gets_everything() {
        let (stream, mut other_end) = duplex(1);
        let mut stream = TakeDeadline::new(stream, TIME);
        let reader = tokio::spawn(async move {
            let mut taken = [0; 3];
            for byte in &mut taken {
                tokio::time::sleep(TIME * 2 / 3).await;
                *byte = other_end.read_u8().await.unwrap();
            }
            taken
        });
        stream.write_all(b"123").await.unwrap();
        assert_eq!(&reader.await.unwrap(), b"123");
    }
}
