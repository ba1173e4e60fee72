//! Receives the bytes of a request's body, with limits of size, speed and memory.
//!
//! Entry point: [`IncomingBody::read`]. No more bytes than the limit are kept in memory, whatever `Content-Length`
//! says.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::Frame;
use tokio::time::{Instant, timeout_at};

use super::body_memory::{BodyMemory, JsonCost, RequestMemory};
use crate::error::ApiError;
use crate::state::AppState;

/// A client that sends less than [`PROGRESS_BYTES`] in this time has stalled.
const STALL_DEADLINE: Duration = Duration::from_secs(10);
const PROGRESS_BYTES: usize = 4 << 10;

/// The time limit for a whole body. The limit grows by 1 s for every [`BYTES_PER_SECOND`] bytes received.
const BODY_DEADLINE: Duration = Duration::from_secs(30);
const BYTES_PER_SECOND: usize = 64 << 10;

/// The byte order mark that some editors put before a text; it has no meaning in UTF-8.
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
const UTF16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// A whole body, with the memory that is held for it.
#[derive(Debug)]
pub(super) struct IncomingBody {
    pub(super) bytes: Bytes,
    memory: BodyMemory,
    cost: JsonCost,
    keeper: RequestMemory,
}

/// The progress of a body that arrives.
#[derive(Debug)]
struct Pace {
    began_at: Instant,
    num_bytes: usize,
    stalls_at: Instant,
    /// The new bytes since the stall deadline was last moved.
    num_new_bytes: usize,
}

impl IncomingBody {
    /// Receives the whole body.
    ///
    /// # Errors
    /// When the body is too large, arrives too slowly or not whole, needs more memory than is free or is UTF-16, or
    /// `check_headers` refuses its headers.
    pub(super) async fn read(request: Request, state: &AppState) -> Result<Self, ApiError> {
        check_headers(request.headers())?;
        let keeper = request.extensions().get::<RequestMemory>().cloned().unwrap_or_default();
        let mut memory = BodyMemory::new(state.memory());
        let (bytes, cost) = collect(request.into_body(), state, &mut memory).await?;
        if UTF16_MARKS.iter().any(|mark| bytes.starts_with(mark)) {
            return Err(ApiError::BodySyntax("it is UTF-16; send it as UTF-8".to_owned()));
        }
        let bytes = Bytes::from(bytes);
        let bytes = if bytes.starts_with(UTF8_MARK) { bytes.slice(UTF8_MARK.len()..) } else { bytes };
        Ok(Self { bytes, memory, cost, keeper })
    }

    /// Frees the bytes. The memory of the parsed data stays reserved until the request's handler is done.
    pub(super) fn parsed(self) {
        let Self { bytes, mut memory, cost, keeper } = self;
        drop(bytes);
        memory.shrink_to(cost.parsed_bytes());
        keeper.keep(memory);
    }
}

async fn collect(mut body: Body, state: &AppState, memory: &mut BodyMemory) -> Result<(Vec<u8>, JsonCost), ApiError> {
    let limit_bytes = state.payload_limit_bytes();
    let announced = body.size_hint().lower();
    if announced > limit_bytes as u64 {
        return Err(ApiError::BodyTooLarge { limit_bytes });
    }
    // The announced size is reserved at once: pages take no memory until they are written to.
    let mut bytes = Vec::with_capacity(announced as usize);
    let (mut cost, mut pace) = (JsonCost::default(), Pace::new());
    while let Some(frame) = pace.next_frame(&mut body).await? {
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > limit_bytes - bytes.len() {
            return Err(ApiError::BodyTooLarge { limit_bytes });
        }
        cost.read(&data);
        memory.grow_to(cost.whole_bytes()).await?;
        bytes.extend_from_slice(&data);
        pace.note(data.len());
    }
    Ok((bytes, cost))
}

/// Refuses encoded bodies, and bodies that a foreign web page could send unasked. A request with an `Origin` header
/// must be JSON: a browser sends JSON across origins only after a preflight request, but form data and plain text
/// without one.
fn check_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    if let Some(encoding) = text(header::CONTENT_ENCODING).filter(|encoding| !encoding.eq_ignore_ascii_case("identity"))
    {
        return Err(ApiError::BodyEncoding(encoding.into_owned()));
    }
    let content_type = text(header::CONTENT_TYPE).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if headers.contains_key(header::ORIGIN) && !is_json {
        return Err(ApiError::BodyOfPage(content_type.into_owned()));
    }
    Ok(())
}

impl Pace {
    fn new() -> Self {
        let began_at = Instant::now();
        Self { began_at, num_bytes: 0, stalls_at: began_at + STALL_DEADLINE, num_new_bytes: 0 }
    }

    /// Waits for the next frame.
    ///
    /// # Errors
    /// When the frame does not arrive in time, or the connection breaks.
    async fn next_frame(&self, body: &mut Body) -> Result<Option<Frame<Bytes>>, ApiError> {
        let seconds = (self.num_bytes / BYTES_PER_SECOND) as u64;
        let most = BODY_DEADLINE + Duration::from_secs(seconds);
        let Ok(frame) = timeout_at(self.stalls_at.min(self.began_at + most), body.frame()).await else {
            return Err(match self.stalls_at <= Instant::now() {
                true => ApiError::BodyStalled { least: PROGRESS_BYTES, time: STALL_DEADLINE },
                false => ApiError::BodyTimeout(most),
            });
        };
        frame.transpose().map_err(|error| ApiError::BodyRead(error.to_string()))
    }

    fn note(&mut self, num_bytes: usize) {
        self.num_bytes += num_bytes;
        self.num_new_bytes += num_bytes;
        if self.num_new_bytes >= PROGRESS_BYTES {
            self.num_new_bytes = 0;
            self.stalls_at = Instant::now() + STALL_DEADLINE;
        }
    }
}
