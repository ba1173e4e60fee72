//! Generations as server-sent events: events with JSON objects, a comment while nothing happens, and an event with the
//! error if a generation fails.
//!
//! Entry points: [`event_stream`] turns any [`Events`] into a response; [`NativeEvents`] are the events of TGI's
//! routes, whose streams have no end marker. Events that are ready at the same time are sent together. When a client
//! disconnects, the stream and its generations are dropped.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep};

use super::StreamResponse;
use crate::error::ApiError;
use crate::generation::Generation;

/// The interval of comments in a silent stream, because proxies close connections that are silent for much longer.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// An empty comment.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// The space to reserve for an event, in bytes: enough for most events without top tokens.
const EVENT_BYTES: usize = 256;

/// The size in bytes at which a chunk is sent without further events.
const MAX_CHUNK_BYTES: usize = 16 << 10;

/// A source of events.
pub(crate) trait Events: Unpin + Send + 'static {
    /// Appends the events that are ready, maybe none, to `chunk`. Returns `None` after the last event.
    fn poll_events(&mut self, cx: &mut Context<'_>, chunk: &mut Vec<u8>) -> Poll<Option<()>>;
}

/// The events of TGI's routes: one for each token, or an error.
#[derive(Debug)]
pub(crate) struct NativeEvents {
    pub(crate) generation: Generation,
    pub(crate) wants_details: bool,
}

/// Returns a response that is a stream of events.
pub(crate) fn event_stream(events: impl Events) -> Response {
    let events = EventStream { events, sent_at: Instant::now(), timer: Box::pin(sleep(KEEP_ALIVE)) };
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(events)).into_response()
}

/// The response's body: each item is one or more whole events, or a comment.
#[derive(Debug)]
struct EventStream<E> {
    events: E,
    /// The time at which an event or a comment was last sent.
    sent_at: Instant,
    /// The timer is reset only when it runs out, because a reset at each event would cost more.
    timer: Pin<Box<Sleep>>,
}

impl<E: Events> Stream for EventStream<E> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut chunk = Vec::new();
        while chunk.len() < MAX_CHUNK_BYTES {
            match self.events.poll_events(cx, &mut chunk) {
                Poll::Ready(Some(())) => {}
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

impl<E> EventStream<E> {
    /// Returns a comment once nothing has been sent for [`KEEP_ALIVE`].
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

impl Events for NativeEvents {
    fn poll_events(&mut self, cx: &mut Context<'_>, chunk: &mut Vec<u8>) -> Poll<Option<()>> {
        match ready!(self.generation.poll_next(cx)) {
            None => return Poll::Ready(None),
            Some(Ok(piece)) => write_event(chunk, &StreamResponse::new(piece, self.wants_details)),
            Some(Err(failure)) => write_event(chunk, &ApiError::of_stream(failure).body()),
        }
        Poll::Ready(Some(()))
    }
}

/// Appends an event with `data` as JSON. The JSON has no line breaks, so one `data:` line suffices.
pub(super) fn write_event(chunk: &mut Vec<u8>, data: &impl Serialize) {
    chunk.reserve(EVENT_BYTES);
    chunk.extend_from_slice(b"data: ");
    let start = chunk.len();
    if serde_json::to_writer(&mut *chunk, data).is_err() {
        chunk.truncate(start);
        chunk.extend_from_slice(ApiError::StreamSerialization.body().to_string().as_bytes());
    }
    chunk.extend_from_slice(b"\n\n");
}

/// Appends an event whose name is its `type`, as Anthropic's clients and OpenAI's newer clients expect.
pub(super) fn write_named_event(chunk: &mut Vec<u8>, event: &Value) {
    let name = event["type"].as_str().unwrap_or_default();
    chunk.extend_from_slice(format!("event: {name}\ndata: {event}\n\n").as_bytes());
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
    use crate::testing::{FakeShard, TestServer, within};

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
        let mut next = async || within("an event", body.frame()).await.map(|frame| frame.unwrap().into_data().unwrap());
        assert!(next().await.unwrap().starts_with(b"data: {\"index\":1,"));
        let sent_at = Instant::now();
        // While tokio's time is paused, it advances whenever all tasks wait.
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
