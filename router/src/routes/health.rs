//! `GET /health`, `/ping`, `/ready`, `/readyz` and `/`: 200 while requests can be served, 503 when the server stops or
//! its shards failed.
//!
//! The port opens after the warm-up, so the server never starts unhealthy. The check never waits for a shard: a busy
//! shard is healthy, and a shard that hangs is detected when its step exceeds the deadline.

use axum::extract::State;

use crate::error::ApiError;
use crate::state::AppState;

/// The handler of the route.
pub(super) async fn health(State(state): State<AppState>) -> Result<(), ApiError> {
    if state.is_healthy() { Ok(()) } else { Err(ApiError::Unhealthy) }
}
