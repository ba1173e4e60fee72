//! `POST /v1/completions/render`, `/v1/chat/completions/render` and `/v1/messages/render`: the tokens that the model
//! would read for the request. Nothing is generated.

use axum::Json;
use axum::extract::State;

use super::chat_completions::{self, Asked};
use crate::api::anthropic::MessagesRequest;
use crate::api::openai::{ChatCompletionRequest, CompletionRequest, OpenAiBody};
use crate::api::{JsonBody, RenderedPrompt, RequestContext};
use crate::error::{AnthropicError, ApiError, OpenAiError};
use crate::generation::GenerationError;
use crate::state::AppState;

/// The handler of `/v1/completions/render`, which returns one item for each prompt.
pub(super) async fn completions(
    State(state): State<AppState>,
    context: RequestContext,
    OpenAiBody { request, sampling }: OpenAiBody<CompletionRequest>,
) -> Result<Json<Vec<RenderedPrompt>>, OpenAiError> {
    let max_prompts = state.info().config.limits.max_client_batch_size;
    let plan = request.into_plan(sampling.or_defaults(state.sampling_defaults()), (&context, max_prompts))?;
    let mut permit = state.generator().admit(context.tenant, plan.requests.len() as u32, &context.request_id)?;
    let mut prompts = Vec::with_capacity(plan.requests.len());
    // Each part keeps the memory of one prompt.
    let mut parts = Vec::with_capacity(plan.requests.len());
    for request in &plan.requests {
        let mut part = permit.split(1).ok_or(GenerationError::Overloaded)?;
        let prompt = state.generator().render(&mut part, request).await?;
        prompts.push(RenderedPrompt::new("cmpl", state.model_id(), prompt));
        parts.push(part);
    }
    Ok(Json(prompts))
}

/// The handler of `/v1/chat/completions/render`.
pub(super) async fn chat_completions(
    State(state): State<AppState>,
    context: RequestContext,
    body: OpenAiBody<ChatCompletionRequest>,
) -> Result<Json<RenderedPrompt>, OpenAiError> {
    let Asked { mut permit, request, .. } = chat_completions::ask(&state, context, body).await?;
    let prompt = state.generator().render(&mut permit, &request).await?;
    Ok(Json(RenderedPrompt::new("chatcmpl", state.model_id(), prompt)))
}

/// The handler of `/v1/messages/render`.
pub(super) async fn messages(
    State(state): State<AppState>,
    context: RequestContext,
    body: Result<JsonBody<MessagesRequest>, ApiError>,
) -> Result<Json<RenderedPrompt>, AnthropicError> {
    let JsonBody(request) = body?;
    let inputs = request.chat()?.into_inputs(jiff::Zoned::now().datetime())?;
    let plan = request.into_plan(state.sampling_defaults())?;
    let mut permit = state.generator().admit(context.tenant, 1, &context.request_id)?;
    let rendered = state.chat().render(inputs).await.map_err(ApiError::from)?;
    let request = plan.tools.request(rendered, plan.sampling, context)?;
    let prompt = state.generator().render(&mut permit, &request).await?;
    Ok(Json(RenderedPrompt::new("msg", state.model_id(), prompt)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{FakeShard, TestServer};

    #[tokio::test]
    async fn tokens_are_those_that_the_model_would_read() {
        let server = TestServer::start(FakeShard::default(), &[]).await;
        let body = json!({"prompt": ["Once, é", "a"], "max_tokens": 3});
        let rendered = server.post_ok("/v1/completions/render", &body).await;
        let tokens = server.post_ok("/tokenize", &json!({"inputs": "Once, é"})).await;
        let ids: Vec<&serde_json::Value> = tokens.as_array().unwrap().iter().map(|token| &token["id"]).collect();
        assert_eq!(rendered[0]["token_ids"], json!(ids));
        assert_eq!(rendered.as_array().map(Vec::len), Some(2));
        let given = server.post_ok("/v1/completions/render", &json!({"prompt": [5, 6, 7]})).await;
        assert_eq!(given[0]["token_ids"], json!([5, 6, 7]));
        assert_eq!(rendered[0]["sampling_params"], json!({"n": 1, "max_tokens": 3}));
        assert!(rendered[0]["request_id"].as_str().unwrap().starts_with("cmpl-"));
        let messages = json!([{"role": "user", "content": "What is 3 + 4?"}]);
        let tokens = server.post_ok("/chat_tokenize", &json!({"messages": messages})).await;
        let tokens = tokens["tokenize_response"].as_array().unwrap().clone();
        let ids: Vec<&serde_json::Value> = tokens.iter().map(|token| &token["id"]).collect();
        for path in ["/v1/chat/completions/render", "/v1/messages/render"] {
            let rendered = server.post_ok(path, &json!({"messages": messages, "max_tokens": 2})).await;
            assert_eq!(rendered["token_ids"], json!(ids), "{path}");
        }
    }

    #[tokio::test]
    async fn requests_that_would_fail_fail_here_too() {
        let server = TestServer::start(FakeShard::default(), &[]).await;
        let answer = server.post("/v1/completions/render", &json!({"prompt": "a", "max_tokens": 0})).await;
        let same = server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 0})).await;
        assert_eq!((answer.status, &answer.text), (same.status, &same.text));
        assert!(answer.status.is_client_error());
    }
}
