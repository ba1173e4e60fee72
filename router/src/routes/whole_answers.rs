//! Whole answers, which are counted in the memory budget until the client has taken them. Streams are counted where they wait.

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

/// Smaller ones belong to what a connection may take.
const MIN_COUNTED_BYTES: u64 = 32 << 10;

/// How long an answer waits for others to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of an answer, and the memory that they take.
struct Counted {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Counts an answer to a POST. What is read with GET is small or the same for everybody.
pub(super) async fn count(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let path = (request.method() == Method::POST).then(|| request.uri().path().to_owned());
    let response = next.run(request).await;
    let size = response.body().size_hint().exact().filter(|size| *size >= MIN_COUNTED_BYTES);
    let (Some(path), Some(size)) = (path, size) else { return response };
    let Some(held) = state.memory().answers.take(size as usize, PATIENCE).await else {
        return ApiError::NoRoomForAnswer.for_path(&path, &HeaderMap::new());
    };
    let (parts, body) = response.into_parts();
    // It is one piece, so nothing is copied.
    let body = match body.collect().await {
        Ok(body) => Body::from(Bytes::from_owner(Counted { bytes: body.to_bytes(), _held: held })),
        Err(error) => Body::from_stream(futures_util::stream::once(async { Err::<Bytes, _>(error) })),
    };
    Response::from_parts(parts, body)
}
