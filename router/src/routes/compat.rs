//! `POST /`: the route that `huggingface_hub` calls. If `stream` is true, the response is that of `/generate_stream`;
//! otherwise it is a list with the response of `/generate`.
//!
//! The prompt is part of the answer unless `return_full_text` is false, as in TGI for models without a pipeline tag.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::{generate, generate_stream};
use crate::api::{CompatRequest, GenerateParameters, GenerateRequest, JsonBody, RequestContext};
use crate::error::ApiError;
use crate::state::AppState;

/// The handler of the route.
pub(super) async fn compat_generate(
    State(state): State<AppState>,
    context: RequestContext,
    JsonBody(request): JsonBody<CompatRequest>,
) -> Result<Response, ApiError> {
    answer(&state, context, request).await
}

/// Returns the response, for this route and for routes that wrap it.
pub(super) async fn answer(
    state: &AppState,
    context: RequestContext,
    request: CompatRequest,
) -> Result<Response, ApiError> {
    let CompatRequest { inputs, parameters, stream } = request;
    let mut parameters = parameters.unwrap_or_else(GenerateParameters::absent);
    parameters.return_full_text.get_or_insert(true);
    let request = GenerateRequest { inputs, parameters: Some(parameters) };
    if stream.unwrap_or(false) {
        return generate_stream::stream(state, context, request).await;
    }
    let (headers, response) = generate::complete(state, context, request).await?;
    Ok((headers, Json([response])).into_response())
}
