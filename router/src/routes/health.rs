//! `GET /health`, `/ping`, `/ready`, `/readyz` and `/`: 200 while requests can be served, 503 when the server stops or
//! its shards failed.
//!
//! The router takes the port after the warm-up, so it never starts unhealthy. The check never waits for a shard: a busy
//! shard is healthy, and a shard that hangs ends the server. `/ready` and `/readyz` return 503 before that, as soon as
//! signs of life of a shard are missing.

use axum::extract::State;

use crate::error::ApiError;
use crate::state::AppState;

/// The handler of the route.
pub(super) async fn health(State(state): State<AppState>) -> Result<(), ApiError> {
    if state.is_healthy() { Ok(()) } else { Err(ApiError::Unhealthy) }
}

/// The handler of the routes of readiness.
pub(super) async fn ready(State(state): State<AppState>) -> Result<(), ApiError> {
    if state.is_ready() { Ok(()) } else { Err(ApiError::Unhealthy) }
}
