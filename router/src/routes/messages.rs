//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::api::anthropic::{Message, MessageEvents, MessagesRequest, TokenCount};
use crate::api::{AnswerEvents, JsonBody, RequestContext, event_stream, generation_headers, stream_headers};
use crate::error::{AnthropicError, ApiError};
use crate::state::AppState;

/// The handler of `/v1/messages`, which returns the assistant's next message.
pub(super) async fn messages(
    State(state): State<AppState>,
    context: RequestContext,
    body: Result<JsonBody<MessagesRequest>, ApiError>,
) -> Result<Response, AnthropicError> {
    let JsonBody(request) = body?;
    let inputs = request.chat()?.into_inputs(jiff::Zoned::now().datetime())?;
    let plan = request.into_plan(state.sampling_defaults())?;
    let permit = state.generator().admit(context.tenant, 1, &context.request_id)?;
    let rendered = state.chat().render(inputs).await.map_err(ApiError::from)?;
    let num_characters = rendered.text.chars().count();
    let request = plan.tools.request(rendered, plan.sampling, context)?;
    if plan.is_stream {
        let generation = state.generator().stream(permit, request).await?;
        let events = AnswerEvents::new(generation, MessageEvents::new(state.model_id(), plan.stop_sequences));
        return Ok((stream_headers(state.compute_type(), num_characters), event_stream(events)).into_response());
    }
    let outcome = state.generator().complete(permit, request).await?;
    let message = Message::new(state.model_id(), &outcome.best.finish, &plan.stop_sequences);
    let headers = generation_headers(state.compute_type(), &[outcome], num_characters);
    Ok((headers, Json(message)).into_response())
}

/// The handler of `/v1/messages/count_tokens`, which returns the number of tokens in a conversation.
pub(super) async fn count_tokens(
    State(state): State<AppState>,
    context: RequestContext,
    body: Result<JsonBody<MessagesRequest>, ApiError>,
) -> Result<Json<TokenCount>, AnthropicError> {
    let JsonBody(request) = body?;
    let inputs = request.chat()?.into_inputs(jiff::Zoned::now().datetime())?;
    let _permit = state.generator().admit(context.tenant, 1, &context.request_id)?;
    let tokenized = state.chat().tokenize(inputs).await.map_err(ApiError::from)?;
    Ok(Json(TokenCount { input_tokens: tokenized.tokens.len() }))
}
