//! Counts large responses to POST requests in the memory budget until the client has read them. The memory of a stream
//! is counted where its events wait to be read.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;

use crate::error::ApiError;
use crate::memory::Held;
use crate::state::AppState;

/// The size in bytes from which responses are counted. Smaller responses belong to the memory that is counted for the
/// connection.
const MIN_COUNTED_BYTES: u64 = 32 << 10;

/// The maximum time for which a response waits for memory that other responses hold.
const PATIENCE: Duration = Duration::from_secs(5);

/// The bytes of a response, and the part of the memory budget that is held for them.
struct Counted {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Middleware that counts the response to a POST request, unless it is small or a stream. Responses to GET are not
/// counted, because they are small, or the same for every client.
pub(super) async fn count(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let path = (request.method() == Method::POST).then(|| request.uri().path().to_owned());
    let response = next.run(request).await;
    let size = response.body().size_hint().exact().filter(|size| *size >= MIN_COUNTED_BYTES);
    let (Some(path), Some(size)) = (path, size) else { return response };
    let Some(held) = state.memory().answers.take(size as usize, PATIENCE).await else {
        return ApiError::NoRoomForAnswer.for_path(&path, &HeaderMap::new());
    };
    let (parts, body) = response.into_parts();
    // The body is one piece, so `collect` copies nothing.
    let body = match body.collect().await {
        Ok(body) => Body::from(Bytes::from_owner(Counted { bytes: body.to_bytes(), _held: held })),
        Err(error) => Body::from_stream(futures_util::stream::once(async { Err::<Bytes, _>(error) })),
    };
    Response::from_parts(parts, body)
}
