//! `POST /generate`: a generation as one JSON object.
//!
//! The response begins after the generation has ended, so every error has its own status.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;

use crate::api::{GenerateRequest, GenerateResponse, JsonBody, RequestContext, generation_headers};
use crate::error::ApiError;
use crate::state::AppState;
use crate::validation::Delivery;

/// The handler of the route.
pub(super) async fn generate(
    State(state): State<AppState>,
    context: RequestContext,
    JsonBody(request): JsonBody<GenerateRequest>,
) -> Result<(HeaderMap, Json<GenerateResponse>), ApiError> {
    let (headers, response) = complete(&state, context, request).await?;
    Ok((headers, Json(response)))
}

/// Returns the response, for this route and for routes that wrap it.
pub(super) async fn complete(
    state: &AppState,
    context: RequestContext,
    request: GenerateRequest,
) -> Result<(HeaderMap, GenerateResponse), ApiError> {
    let tenant = context.tenant;
    let request = request.into_generation(context, state.sampling_defaults());
    let permit = state.generator().admit_request(tenant, &request, Delivery::Whole)?;
    let (num_characters, wants_details) = (request.prompt.num_characters(), request.options.wants_details);
    let outcome = state.generator().complete(permit, request).await?;
    let headers = generation_headers(state.compute_type(), std::slice::from_ref(&outcome), num_characters);
    Ok((headers, GenerateResponse::new(outcome.best, outcome.others, wants_details)))
}
