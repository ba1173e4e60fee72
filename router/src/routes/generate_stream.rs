//! `POST /generate_stream`: a generation as server-sent events, one per token, the last one with the summary.
//!
//! A request that cannot be carried out gets an error status, because the stream begins after validation.

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::api::{GenerateRequest, JsonBody, NativeEvents, RequestContext, event_stream, stream_headers};
use crate::error::ApiError;
use crate::state::AppState;
use crate::validation::Delivery;

/// The handler of the route.
pub(super) async fn generate_stream(
    State(state): State<AppState>,
    context: RequestContext,
    JsonBody(request): JsonBody<GenerateRequest>,
) -> Result<Response, ApiError> {
    stream(&state, context, request).await
}

/// Returns the response, for this route and for routes that wrap it.
pub(super) async fn stream(
    state: &AppState,
    context: RequestContext,
    request: GenerateRequest,
) -> Result<Response, ApiError> {
    let tenant = context.tenant;
    let request = request.into_generation(context, state.sampling_defaults());
    let permit = state.generator().admit_request(tenant, &request, Delivery::Stream)?;
    let headers = stream_headers(state.compute_type(), request.prompt.num_characters());
    let wants_details = request.options.wants_details;
    let generation = state.generator().stream(permit, request).await?;
    let events = event_stream(NativeEvents { generation, wants_details });
    Ok((headers, events).into_response())
}
