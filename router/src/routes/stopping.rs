//! Requests while the server stops: new ones are refused, and those that have no response yet when the time of running
//! requests is over get an error.
//!
//! A response that has begun, such as a stream, ends with an error of its own (`crate::generation`).

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;

use crate::error::{ApiError, ErrorShape};
use crate::generation::GenerationError;
use crate::lifecycle::Stage;
use crate::state::AppState;

/// The paths that are read until the end: health checks, which say themselves that the server stops, and the metrics,
/// which show how many requests still run.
const READ_UNTIL_THE_END: [&str; 6] = ["/", "/health", "/ping", "/ready", "/readyz", "/metrics"];

/// Middleware that answers for the handlers while the server stops.
pub(super) async fn tell(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let shape = ErrorShape::of(path, request.headers());
    let told = || ApiError::from(GenerationError::Stopping).in_shape(shape);
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD) && READ_UNTIL_THE_END.contains(&path);
    if state.shutdown().stage() >= Stage::Draining && !is_read {
        return told();
    }
    tokio::select! {
        biased;
        response = next.run(request) => response,
        () = state.shutdown().reached(Stage::Ending) => told(),
    }
}
