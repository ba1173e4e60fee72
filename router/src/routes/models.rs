//! `GET /v1/models` and `GET /v1/models/{id}`: a description of the one model that this server serves, for clients of
//! OpenAI's and of Anthropic's API.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;

use crate::api::openai::{Model, Models};
use crate::error::ApiError;
use crate::state::AppState;

/// The handler for the list of models.
pub(super) async fn models(State(state): State<AppState>) -> Json<Models> {
    Json(Models::new(served(&state)))
}

/// The handler for one model. The id is the rest of the path, because model ids may contain slashes.
pub(super) async fn model(
    State(state): State<AppState>,
    Path(id): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Json<Model>, Response> {
    if id == state.model_id() {
        return Ok(Json(served(&state)));
    }
    let error = ApiError::NoSuchModel { given: id, served: state.model_id().to_owned() };
    Err(error.for_path(uri.path(), &headers))
}

fn served(state: &AppState) -> Model {
    Model::new(state.model_id(), state.info().limits.request.max_total_tokens)
}
