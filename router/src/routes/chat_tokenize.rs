//! `POST /chat_tokenize`: renders a conversation with the chat template, and returns the text and its tokens.
//!
//! Nothing is generated: clients see the text that the model would read.

use axum::extract::State;
use axum::response::Response;

use crate::api::{ChatRequest, JsonBody, RequestContext, chat_token_list};
use crate::error::ApiError;
use crate::state::AppState;

/// The handler of the route.
pub(super) async fn chat_tokenize(
    State(state): State<AppState>,
    context: RequestContext,
    JsonBody(request): JsonBody<ChatRequest>,
) -> Result<Response, ApiError> {
    let inputs = request.into_inputs(jiff::Zoned::now().datetime())?;
    let _permit = state.generator().admit(context.tenant, 1, &context.request_id)?;
    let tokenized = state.chat().tokenize(inputs).await?;
    chat_token_list(tokenized, &state.memory().answers).await
}
