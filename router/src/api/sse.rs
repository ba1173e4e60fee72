//! A generation as server-sent events: one JSON object per event, a comment while nothing happens, and an error as
//! the last event.
//!
//! Events that are there at the same time go out together. A client that leaves drops the stream, and the generation
//! with it. There is no end marker on TGI's native routes.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use tokio::time::{Instant, Sleep, sleep};

use super::StreamResponse;
use crate::error::ApiError;
use crate::generation::{Generation, GenerationError, Piece};

/// Proxies close connections on which nothing happens for much longer.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A comment without words.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// Room for an event without top tokens.
const EVENT_BYTES: usize = 256;

/// What goes out together at most, but for the last event of it.
const MAX_CHUNK_BYTES: usize = 16 << 10;

/// The events of a generation.
pub(crate) fn event_stream(generation: Generation, wants_details: bool) -> Response {
    let events = EventStream { generation, wants_details, sent_at: Instant::now(), timer: Box::pin(sleep(KEEP_ALIVE)) };
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(events)).into_response()
}

/// The body: each item is one or more whole events, or a comment.
#[derive(Debug)]
struct EventStream {
    generation: Generation,
    wants_details: bool,
    /// When something was last sent.
    sent_at: Instant,
    /// Set anew when it runs out and not at each event, which costs more than the event.
    timer: Pin<Box<Sleep>>,
}

impl Stream for EventStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut chunk = Vec::new();
        while chunk.len() < MAX_CHUNK_BYTES {
            match self.generation.poll_next(cx) {
                Poll::Ready(Some(result)) => write_event(&mut chunk, result, self.wants_details),
                Poll::Ready(None) if chunk.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) => break,
                Poll::Pending if chunk.is_empty() => return self.poll_keep_alive(cx).map(|comment| Some(Ok(comment))),
                Poll::Pending => break,
            }
        }
        self.sent_at = Instant::now();
        Poll::Ready(Some(Ok(chunk.into())))
    }
}

impl EventStream {
    /// A comment when nothing was sent for so long.
    fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let is_silent = now >= self.sent_at + KEEP_ALIVE;
            if is_silent {
                self.sent_at = now;
            }
            let next = self.sent_at + KEEP_ALIVE;
            self.timer.as_mut().reset(next);
            if is_silent {
                return Poll::Ready(COMMENT);
            }
        }
        Poll::Pending
    }
}

/// JSON has no line breaks, so an event is one line of data.
fn write_event(chunk: &mut Vec<u8>, result: Result<Piece, GenerationError>, wants_details: bool) {
    chunk.reserve(EVENT_BYTES);
    chunk.extend_from_slice(b"data: ");
    let start = chunk.len();
    let written = match result {
        Ok(piece) => serde_json::to_writer(&mut *chunk, &StreamResponse::new(piece, wants_details)),
        Err(GenerationError::Incomplete) => serde_json::to_writer(&mut *chunk, &ApiError::IncompleteStream.body()),
        Err(failure) => serde_json::to_writer(&mut *chunk, &ApiError::from(failure).body()),
    };
    if written.is_err() {
        chunk.truncate(start);
        chunk.extend_from_slice(ApiError::StreamSerialization.body().to_string().as_bytes());
    }
    chunk.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::Request;
    use http_body_util::BodyExt;
    use serde_json::json;
    use tokio::sync::Semaphore;
    use tower::ServiceExt;

    use super::*;
    use crate::testing::{FakeShard, TestServer};

    #[tokio::test]
    async fn silence_is_filled_with_comments() {
        let steps = Arc::new(Semaphore::new(1));
        let shard = FakeShard { steps: Arc::clone(&steps), ..FakeShard::default() };
        let server = TestServer::start(shard, &[]).await;
        let request = json!({"inputs": "Once", "parameters": {"max_new_tokens": 2}}).to_string();
        let request = Request::post("/generate_stream").body(Body::from(request)).unwrap();
        let response = server.app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-cache");
        let mut body = response.into_body();
        let mut next = async || body.frame().await.map(|frame| frame.unwrap().into_data().unwrap());
        assert!(next().await.unwrap().starts_with(b"data: {\"index\":1,"));
        let sent_at = Instant::now();
        // Time goes on as soon as everybody waits for it.
        tokio::time::pause();
        assert_eq!(next().await.unwrap(), COMMENT);
        let silence = sent_at.elapsed();
        assert!(silence.abs_diff(KEEP_ALIVE) < Duration::from_secs(1), "{silence:?}");
        tokio::time::resume();
        steps.add_permits(1);
        assert!(next().await.unwrap().starts_with(b"data: {\"index\":2,"));
        assert!(next().await.is_none());
    }
}
