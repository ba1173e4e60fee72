//! `POST /v1/chat/completions`: the assistant's next message in a conversation, as OpenAI's API has it.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;

use crate::api::openai::{
    ChatChunks, ChatCompletion, ChatCompletionRequest, ChatPlan, Identity, OpenAiBody, OpenAiEvents,
};
use crate::api::{RequestContext, event_stream, generation_headers, stream_headers};
use crate::error::{ApiError, OpenAiError};
use crate::generation::GenerationRequest;
use crate::state::AppState;

const KIND: (&str, &str) = ("chat.completion", "chatcmpl");
const CHUNK_KIND: (&str, &str) = ("chat.completion.chunk", "chatcmpl");

/// The handler.
pub(super) async fn chat_completions(
    State(state): State<AppState>,
    context: RequestContext,
    body: OpenAiBody<ChatCompletionRequest>,
) -> Result<Response, OpenAiError> {
    answer(&state, context, body).await
}

/// The answer, for this route and for those that wrap it.
pub(super) async fn answer(
    state: &AppState,
    context: RequestContext,
    body: OpenAiBody<ChatCompletionRequest>,
) -> Result<Response, OpenAiError> {
    let ChatRequests { plan, each, num_characters } = requests(state, context, body).await?;
    if plan.is_stream {
        let chunks = ChatChunks::new(Identity::new(CHUNK_KIND, state.model_id()), plan.form, each.len());
        let generations = state.generator().stream_all(each).await?;
        let headers = stream_headers(state.compute_type(), num_characters);
        return Ok((headers, event_stream(OpenAiEvents::new(generations, chunks))).into_response());
    }
    let complete = |request| async { state.generator().complete(request).await };
    let outcomes = try_join_all(each.into_iter().map(complete)).await?;
    let headers = generation_headers(state.compute_type(), &outcomes, num_characters);
    let identity = Identity::new(KIND, state.model_id());
    Ok((headers, Json(ChatCompletion::new(identity, plan.form, outcomes))).into_response())
}

/// A conversation, ready to go on.
#[derive(Debug)]
pub(super) struct ChatRequests {
    plan: ChatPlan,
    /// One for each choice.
    pub(super) each: Vec<GenerationRequest>,
    num_characters: usize,
}

/// What is to be generated for a body.
pub(super) async fn requests(
    state: &AppState,
    context: RequestContext,
    OpenAiBody { request, sampling }: OpenAiBody<ChatCompletionRequest>,
) -> Result<ChatRequests, ApiError> {
    let (chat, plan) = request.into_plan(sampling.or_defaults(state.sampling_defaults()))?;
    let inputs = chat.into_inputs(jiff::Zoned::now().datetime())?;
    let rendered = state.chat().render(inputs).await?;
    let num_characters = rendered.text.chars().count();
    Ok(ChatRequests { each: plan.requests(rendered, &context)?, plan, num_characters })
}
