//! `POST /v1/completions`: OpenAI's completion of a prompt, or of several.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::api::openai::{CompletionChunks, CompletionRequest, Identity, OpenAiBody, OpenAiEvents, TextCompletion};
use crate::api::{RequestContext, event_stream, generation_headers, stream_headers};
use crate::error::OpenAiError;
use crate::state::AppState;
use crate::validation::PromptInput;

const KIND: (&str, &str) = ("text_completion", "cmpl");

/// The handler of the route.
pub(super) async fn completions(
    State(state): State<AppState>,
    context: RequestContext,
    body: OpenAiBody<CompletionRequest>,
) -> Result<Response, OpenAiError> {
    answer(&state, context, body).await
}

/// Returns the response, for this route and for routes that wrap it.
pub(super) async fn answer(
    state: &AppState,
    context: RequestContext,
    OpenAiBody { request, sampling }: OpenAiBody<CompletionRequest>,
) -> Result<Response, OpenAiError> {
    let max_prompts = state.info().config.limits.max_client_batch_size;
    let plan = request.into_plan(sampling.or_defaults(state.sampling_defaults()), (&context, max_prompts))?;
    let num_choices = plan.requests.len() * plan.form.num_per_prompt;
    let permit = state.generator().admit(context.tenant, num_choices as u32, &context.request_id)?;
    let identity = Identity::new(KIND, state.model_id(), state.system_fingerprint());
    let num_characters: usize = plan.requests.iter().map(|request| request.prompt.num_characters()).sum();
    let num_characters = num_characters * plan.form.num_per_prompt;
    if plan.is_stream {
        let chunks = CompletionChunks::new(identity, plan.form, num_choices);
        let generations = state.generator().stream_all(permit, plan.requests).await?;
        let headers = stream_headers(state.compute_type(), num_characters);
        return Ok((headers, event_stream(OpenAiEvents::new(generations, chunks))).into_response());
    }
    let prompts: Vec<PromptInput> = plan.requests.iter().map(|request| request.prompt.clone()).collect();
    let mut outcomes = state.generator().complete_all(permit, plan.requests).await?;
    outcomes.iter_mut().for_each(|outcome| plan.form.trim(outcome));
    let prompts = prompts.iter().map(|prompt| state.generator().text_of(prompt)).collect::<Result<Vec<_>, _>>()?;
    let headers = generation_headers(state.compute_type(), &outcomes, num_characters);
    Ok((headers, Json(TextCompletion::new(identity, plan.form, &prompts, outcomes))).into_response())
}
