//! `POST /v1/chat/completions`: the assistant's next message in a conversation, as in OpenAI's API.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::api::openai::{
    ChatChunks, ChatCompletion, ChatCompletionRequest, ChatForm, Identity, OpenAiBody, OpenAiEvents,
};
use crate::api::{RequestContext, event_stream, generation_headers, stream_headers};
use crate::error::{ApiError, OpenAiError};
use crate::generation::{GenerationRequest, Permit};
use crate::state::AppState;

const KIND: (&str, &str) = ("chat.completion", "chatcmpl");
const CHUNK_KIND: (&str, &str) = ("chat.completion.chunk", "chatcmpl");

/// The handler of the route.
pub(super) async fn chat_completions(
    State(state): State<AppState>,
    context: RequestContext,
    body: OpenAiBody<ChatCompletionRequest>,
) -> Result<Response, OpenAiError> {
    answer(&state, context, body).await
}

/// Returns the response, for this route and for routes that wrap it.
pub(super) async fn answer(
    state: &AppState,
    context: RequestContext,
    body: OpenAiBody<ChatCompletionRequest>,
) -> Result<Response, OpenAiError> {
    let Asked { permit, request, is_stream, form, num_characters } = ask(state, context, body).await?;
    if is_stream {
        let num_choices = request.num_choices as usize;
        let identity = Identity::new(CHUNK_KIND, state.model_id(), state.system_fingerprint());
        let chunks = ChatChunks::new(identity, form, num_choices);
        let generations = state.generator().stream_all(permit, vec![request]).await?;
        let headers = stream_headers(state.compute_type(), num_characters);
        return Ok((headers, event_stream(OpenAiEvents::new(generations, chunks))).into_response());
    }
    let outcomes = state.generator().complete_all(permit, vec![request]).await?;
    let headers = generation_headers(state.compute_type(), &outcomes, num_characters);
    let identity = Identity::new(KIND, state.model_id(), state.system_fingerprint());
    Ok((headers, Json(ChatCompletion::new(identity, form, outcomes))).into_response())
}

/// A conversation whose generation is ready to begin.
#[derive(Debug)]
pub(super) struct Asked {
    /// The permit for all choices together.
    pub(super) permit: Permit,
    pub(super) request: GenerationRequest,
    is_stream: bool,
    form: ChatForm,
    num_characters: usize,
}

/// Takes a permit, renders the conversation, and returns the generation that the body asks for.
pub(super) async fn ask(
    state: &AppState,
    context: RequestContext,
    OpenAiBody { request, sampling }: OpenAiBody<ChatCompletionRequest>,
) -> Result<Asked, ApiError> {
    let (chat, plan) = request.into_plan(sampling.or_defaults(state.sampling_defaults()))?;
    let inputs = chat.into_inputs(jiff::Zoned::now().datetime())?;
    let permit = state.generator().admit(context.tenant, plan.num_choices, &context.request_id)?;
    let rendered = state.chat().render(inputs).await?;
    let num_characters = rendered.text.chars().count();
    let (is_stream, form) = (plan.is_stream, plan.form);
    Ok(Asked { permit, request: plan.request(rendered, context)?, is_stream, form, num_characters })
}
