//! `GET /v1/models`: the one model that is served.

use axum::Json;
use axum::extract::State;

use crate::api::openai::Models;
use crate::state::AppState;

/// The handler.
pub(super) async fn models(State(state): State<AppState>) -> Json<Models> {
    Json(Models::new(state.model_id(), state.info().limits.request.max_total_tokens))
}
