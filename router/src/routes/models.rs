//! `GET /v1/models` and `GET /v1/models/{id}`: the one model that is served.

use axum::Json;
use axum::extract::{Path, State};

use crate::api::openai::{Model, Models};
use crate::error::{ApiError, OpenAiError};
use crate::state::AppState;

/// All models.
pub(super) async fn models(State(state): State<AppState>) -> Json<Models> {
    Json(Models::new(served(&state)))
}

/// One of them; an id has slashes as a rule.
pub(super) async fn model(State(state): State<AppState>, Path(id): Path<String>) -> Result<Json<Model>, OpenAiError> {
    if id == state.model_id() {
        return Ok(Json(served(&state)));
    }
    Err(ApiError::NoSuchModel { given: id, served: state.model_id().to_owned() }.into())
}

fn served(state: &AppState) -> Model {
    Model::new(state.model_id(), state.info().limits.request.max_total_tokens)
}
