//! `GET /health`, `/ping` and `/`: 200 while requests can be served, 503 when the server stops or its shards
//! failed.
//!
//! The port opens after warm-up, so there is no unhealthy start. It never waits for a shard: busy is not dead, and
//! a shard that hangs is found by the deadline of its step.

use axum::extract::State;

use crate::error::ApiError;
use crate::state::AppState;

/// The handler.
pub(super) async fn health(State(state): State<AppState>) -> Result<(), ApiError> {
    if state.is_healthy() { Ok(()) } else { Err(ApiError::Unhealthy) }
}
