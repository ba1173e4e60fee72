//! `POST /v1/completions`: OpenAI's completion of a prompt, or of several.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;

use crate::api::openai::{CompletionChunks, CompletionRequest, Identity, OpenAiBody, OpenAiEvents, TextCompletion};
use crate::api::{RequestContext, event_stream, generation_headers, stream_headers};
use crate::error::OpenAiError;
use crate::state::AppState;
use crate::validation::Prompt;

const KIND: (&str, &str) = ("text_completion", "cmpl");

/// The handler.
pub(super) async fn completions(
    State(state): State<AppState>,
    context: RequestContext,
    body: OpenAiBody<CompletionRequest>,
) -> Result<Response, OpenAiError> {
    answer(&state, context, body).await
}

/// The answer, for this route and for those that wrap it.
pub(super) async fn answer(
    state: &AppState,
    context: RequestContext,
    OpenAiBody { request, sampling }: OpenAiBody<CompletionRequest>,
) -> Result<Response, OpenAiError> {
    let max_prompts = state.info().config.limits.max_client_batch_size;
    let plan = request.into_plan(sampling.or_defaults(state.sampling_defaults()), (context, max_prompts))?;
    let identity = Identity::new(KIND, state.model_id());
    let num_characters = plan.requests.iter().map(|request| request.prompt.num_characters()).sum();
    if plan.is_stream {
        let chunks = CompletionChunks::new(identity, plan.form, plan.requests.len());
        let generations = state.generator().stream_all(plan.requests).await?;
        let headers = stream_headers(state.compute_type(), num_characters);
        return Ok((headers, event_stream(OpenAiEvents::new(generations, chunks))).into_response());
    }
    let complete = |request| async { state.generator().complete(request).await };
    let prompts: Vec<Prompt> = plan.requests.iter().map(|request| request.prompt.clone()).collect();
    let mut outcomes = try_join_all(plan.requests.into_iter().map(complete)).await?;
    outcomes.iter_mut().for_each(|outcome| plan.form.trim(outcome));
    let prompts = prompts.into_iter().map(|prompt| state.generator().text_of(prompt));
    let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
    let headers = generation_headers(state.compute_type(), &outcomes, num_characters);
    let answers = prompts.into_iter().zip(outcomes).collect();
    Ok((headers, Json(TextCompletion::new(identity, plan.form, answers))).into_response())
}
