//! A stream whose peer must read in time. It must read some bytes within each time limit, and the whole response to a
//! request before a deadline.
//!
//! Entry points: [`TakeDeadline`], [`AnswerDeadline`]. Bytes count as read when the kernel accepts them. The kernel
//! accepts more bytes only when a third of its send buffer is free, so with a known buffer size the time limit is also
//! a minimum rate.

use std::io::{Error, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// The time after `--request-timeout` in which a client must read the rest of the response.
const GRACE: Duration = Duration::from_secs(30);

/// The time by which the current response of a connection must be read. Clones share the deadline.
#[derive(Debug, Clone)]
pub(crate) struct AnswerDeadline {
    time: Option<Duration>,
    until: Arc<Mutex<Option<Instant>>>,
}

/// A stream with a time limit. Writing fails with [`ErrorKind::TimedOut`] when nothing could be written for `time`, or
/// when a write has to wait after the deadline.
pub(crate) struct TakeDeadline<S> {
    stream: S,
    time: Duration,
    deadline: AnswerDeadline,
    /// The timer of the write that is waiting, if there is one.
    timer: Option<Pin<Box<Sleep>>>,
}

impl AnswerDeadline {
    /// Creates a deadline for requests that may take `request_timeout` in total. `None` means no deadline.
    pub(crate) fn new(request_timeout: Option<Duration>) -> Self {
        Self { time: request_timeout.map(|time| time.saturating_add(GRACE)), until: Arc::default() }
    }

    /// Sets the deadline of a new request, counted from now.
    pub(crate) fn begin(&self) {
        let until = self.time.and_then(|time| Instant::now().checked_add(time));
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    fn until(&self) -> Option<Instant> {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> TakeDeadline<S> {
    pub(crate) fn new(stream: S, time: Duration, deadline: AnswerDeadline) -> Self {
        Self { stream, time, deadline, timer: None }
    }

    /// Returns the outcome of a write, or an error if the write has waited too long.
    fn limit<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<Result<T, Error>>) -> Poll<Result<T, Error>> {
        if outcome.is_ready() {
            self.timer = None;
            return outcome;
        }
        let timer = self.timer.get_or_insert_with(|| {
            let until = Instant::now() + self.time;
            Box::pin(sleep_until(self.deadline.until().map_or(until, |deadline| deadline.min(until))))
        });
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client does not read its answer")))
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

    use super::*;

    const TIME: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (stream, _other_end) = duplex(4);
        let (mut stream, start) = (TakeDeadline::new(stream, TIME, AnswerDeadline::new(None)), Instant::now());
        let error = stream.write_all(b"12345").await.unwrap_err();
        assert_eq!((error.kind(), start.elapsed()), (ErrorKind::TimedOut, TIME));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_a_little_now_and_then_gets_everything() {
        let (stream, mut other_end) = duplex(1);
        let mut stream = TakeDeadline::new(stream, TIME, AnswerDeadline::new(None));
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

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_taken_too_slowly_ends_at_its_deadline() {
        let (stream, mut other_end) = duplex(1);
        let (request_timeout, start) = (Duration::from_secs(100), Instant::now());
        let deadline = AnswerDeadline::new(Some(request_timeout));
        deadline.begin();
        let mut stream = TakeDeadline::new(stream, TIME, deadline);
        let reader = tokio::spawn(async move {
            loop {
                tokio::time::sleep(TIME * 2 / 3).await;
                let _ = other_end.read_u8().await;
            }
        });
        let error = stream.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!((error.kind(), start.elapsed()), (ErrorKind::TimedOut, request_timeout + GRACE));
        reader.abort();
    }

    #[test]
    fn a_time_beyond_the_clock_is_no_deadline() {
        let start = Instant::now();
        let until = |time| {
            let deadline = AnswerDeadline::new(time);
            deadline.begin();
            deadline.until()
        };
        assert!(until(Some(Duration::ZERO)).is_some_and(|until| until >= start + GRACE));
        assert_eq!(until(Some(Duration::MAX)), None, "a time beyond the clock is no deadline");
        assert_eq!(until(None), None);
    }
}
