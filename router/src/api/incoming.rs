//! The bytes of a request's body: as many as may be, as fast as they must come, within the memory that bodies may take.
//!
//! Door: [`IncomingBody::read`]. Nothing over the limit is kept in memory, whatever `Content-Length` says.

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

/// A client that sends less than [`PROGRESS_BYTES`] in this time is not sending.
const STALL_DEADLINE: Duration = Duration::from_secs(10);
const PROGRESS_BYTES: usize = 4 << 10;

/// A whole body may take this long, and a second longer for each of its [`BYTES_PER_SECOND`].
const BODY_DEADLINE: Duration = Duration::from_secs(30);
const BYTES_PER_SECOND: usize = 64 << 10;

/// A mark that some editors put in front of a text; it says nothing.
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
const UTF16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// A whole body, and what it holds.
#[derive(Debug)]
pub(super) struct IncomingBody {
    pub(super) bytes: Bytes,
    memory: BodyMemory,
    cost: JsonCost,
    keeper: RequestMemory,
}

/// How fast a body comes.
#[derive(Debug)]
struct Pace {
    began_at: Instant,
    num_bytes: usize,
    stalls_at: Instant,
    /// Of these, since the stall was last put off.
    num_new_bytes: usize,
}

impl IncomingBody {
    /// The whole body.
    ///
    /// # Errors
    /// When it is too large, does not come, is no plain JSON by its headers, or there is no memory for it.
    pub(super) async fn read(request: Request, state: &AppState) -> Result<Self, ApiError> {
        check_headers(request.headers())?;
        let keeper = request.extensions().get::<RequestMemory>().cloned().unwrap_or_default();
        let mut memory = BodyMemory::new(state.memory());
        let (bytes, cost) = collect(request.into_body(), state, &mut memory).await?;
        if UTF16_MARKS.iter().any(|mark| bytes.starts_with(mark)) {
            return Err(ApiError::BodySyntax("it is UTF-16; JSON is sent as UTF-8".to_owned()));
        }
        let bytes = Bytes::from(bytes);
        let bytes = if bytes.starts_with(UTF8_MARK) { bytes.slice(UTF8_MARK.len()..) } else { bytes };
        Ok(Self { bytes, memory, cost, keeper })
    }

    /// Notes that the bytes are gone and what was parsed from them stays, until the request is done.
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
    // What is not written to takes no memory yet.
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

/// Refuses what would be read as something else than it is, and what a page in a browser may send to anybody without asking: with an
/// `Origin`, only JSON by its name is preceded by the question whether it may be sent.
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

    /// # Errors
    /// When it does not come in time, or the connection broke.
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
