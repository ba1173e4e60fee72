//! `POST /v1/responses`: OpenAI's newer API, without stored conversations.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::api::openai::OpenAiBody;
use crate::api::responses::{ResponseEvents, ResponsesRequest};
use crate::api::{AnswerEvents, RequestContext, event_stream, generation_headers, stream_headers};
use crate::error::OpenAiError;
use crate::state::AppState;

/// The handler of the route.
pub(super) async fn responses(
    State(state): State<AppState>,
    context: RequestContext,
    OpenAiBody { request, sampling }: OpenAiBody<ResponsesRequest>,
) -> Result<Response, OpenAiError> {
    let (chat, plan) = request.into_plan(sampling.or_defaults(state.sampling_defaults()), state.model_id())?;
    let inputs = chat.into_inputs(jiff::Zoned::now().datetime())?;
    let permit = state.generator().admit(context.tenant, 1, &context.request_id)?;
    let rendered = state.chat().render(inputs).await?;
    let num_characters = rendered.text.chars().count();
    let request = plan.tools.request(rendered, plan.sampling, context)?;
    if plan.is_stream {
        let generation = state.generator().stream(permit, request).await?;
        let headers = stream_headers(state.compute_type(), num_characters);
        return Ok(
            (headers, event_stream(AnswerEvents::new(generation, ResponseEvents::new(plan.head)))).into_response()
        );
    }
    let outcome = state.generator().complete(permit, request).await?;
    let response = plan.head.whole(&outcome.best.finish);
    let headers = generation_headers(state.compute_type(), &[outcome], num_characters);
    Ok((headers, Json(response)).into_response())
}
