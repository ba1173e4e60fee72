//! The facts about a request that are known before its body is read: its arrival time, its id and its tenant.
//!
//! The id is the header `x-request-id`. If the client sends none, or one that is empty, too long or not visible ASCII,
//! the server chooses a random id. The id is also in the header of the response and in the log. A trace that the client
//! names (`trace_context`) is logged too.

use std::convert::Infallible;
use std::time::Instant;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use scheduler::Tenant;

use super::body_memory::RequestMemory;
use super::trace_context::trace;
use crate::generation::RequestId;
use crate::state::AppState;

/// The header with the request id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The maximum length of a request id from a client, in bytes. A longer id is replaced.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// The arrival time, the id and the tenant of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestContext {
    pub(crate) received_at: Instant,
    pub(crate) request_id: RequestId,
    /// The owner of the request's API key.
    pub(crate) tenant: Tenant,
}

impl RequestContext {
    fn new(request_id: RequestId) -> Self {
        Self { received_at: Instant::now(), request_id, tenant: Tenant::default() }
    }
}

impl FromRequestParts<AppState> for RequestContext {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &AppState) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_else(|| Self::new(RequestId::default())))
    }
}

/// Middleware that gives the request its id, and adds the id to the response's headers. Holds the memory of the body
/// until the response begins.
pub(crate) async fn request_id(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(&REQUEST_ID).and_then(|id| id.to_str().ok());
    let request_id = match given.filter(|id| !id.is_empty() && id.len() <= MAX_REQUEST_ID_BYTES) {
        Some(id) => id.to_owned(),
        None => format!("{:016x}", fastrand::u64(..)),
    };
    let header = HeaderValue::from_str(&request_id);
    let request_id = RequestId { id: request_id.into(), trace: trace(request.headers()) };
    let memory = RequestMemory::default();
    request.extensions_mut().insert(memory.clone());
    request.extensions_mut().insert(RequestContext::new(request_id));
    let mut response = next.run(request).await;
    drop(memory);
    if let Ok(header) = header {
        response.headers_mut().insert(REQUEST_ID, header);
    }
    response
}
