//! `POST /chat_tokenize`: the text that the chat template makes of a conversation, and its tokens.
//!
//! Nothing is generated. It shows what the model would read.

use axum::Json;
use axum::extract::State;

use crate::api::{ChatRequest, ChatTokenizeResponse, JsonBody};
use crate::error::ApiError;
use crate::state::AppState;

/// The handler.
pub(super) async fn chat_tokenize(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<ChatRequest>,
) -> Result<Json<ChatTokenizeResponse>, ApiError> {
    let inputs = request.into_inputs(jiff::Zoned::now().datetime())?;
    Ok(Json(state.chat().tokenize(inputs).await?.into()))
}
