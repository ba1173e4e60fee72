//! A generation as server-sent events: one JSON object per event, a comment while nothing happens, and an error as
//! the last event.
//!
//! A client that leaves drops the stream, and the generation with it. There is no end marker on TGI's native
//! routes.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive, KeepAliveStream};
use futures_util::{Stream, stream};

use super::StreamResponse;
use crate::error::ApiError;
use crate::generation::{Generation, GenerationError};

/// Proxies close connections on which nothing happens for much longer.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The events of a generation.
pub(crate) fn event_stream(
    generation: Generation,
    wants_details: bool,
) -> Sse<KeepAliveStream<impl Stream<Item = Result<Event, Infallible>>>> {
    let events = stream::unfold(generation, move |mut generation| async move {
        let event = match generation.next().await? {
            Ok(piece) => data(&StreamResponse::new(piece, wants_details)),
            Err(GenerationError::Incomplete) => error(&ApiError::IncompleteStream),
            Err(failure) => error(&ApiError::from(failure)),
        };
        Some((Ok(event), generation))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

fn data(response: &StreamResponse) -> Event {
    Event::default().json_data(response).unwrap_or_else(|_| error(&ApiError::StreamSerialization))
}

fn error(error: &ApiError) -> Event {
    Event::default().data(error.body().to_string())
}
