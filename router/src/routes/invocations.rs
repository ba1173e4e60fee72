//! `POST /invocations`: the route that SageMaker calls. A field of the body chooses the route: `inputs` for `/`,
//! `messages` for `/v1/chat/completions`, `prompt` for `/v1/completions`.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use utoipa::openapi::schema::{AnyOfBuilder, ArrayBuilder, Schema};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::{chat_completions, compat, completions};
use crate::api::openai::{ChatCompletion, ChatCompletionRequest, CompletionRequest, OpenAiBody, TextCompletion};
use crate::api::{CompatRequest, GenerateResponse, RequestContext, parse_body, read_as};
use crate::error::ApiError;
use crate::state::AppState;

/// The body as the OpenAPI document describes it: the body of any of the three routes.
pub(super) struct InvocationsRequest;

impl ToSchema for InvocationsRequest {}

impl PartialSchema for InvocationsRequest {
    fn schema() -> RefOr<Schema> {
        let names = [CompatRequest::name(), ChatCompletionRequest::name(), CompletionRequest::name()];
        names.map(Ref::from_schema_name).into_iter().fold(AnyOfBuilder::new(), AnyOfBuilder::item).into()
    }
}

/// The response as the OpenAPI document describes it: the response of any of the three routes.
pub(super) struct InvocationsResponse;

impl ToSchema for InvocationsResponse {}

impl PartialSchema for InvocationsResponse {
    fn schema() -> RefOr<Schema> {
        let native = ArrayBuilder::new().items(Ref::from_schema_name(GenerateResponse::name()));
        let names = [ChatCompletion::name(), TextCompletion::name()];
        names.map(Ref::from_schema_name).into_iter().fold(AnyOfBuilder::new().item(native), AnyOfBuilder::item).into()
    }
}

/// A parsed body of one of the three routes.
#[expect(clippy::large_enum_variant, reason = "a value is matched at once and never stored")]
enum Invocation {
    Native(CompatRequest),
    Chat(OpenAiBody<ChatCompletionRequest>),
    Completion(OpenAiBody<CompletionRequest>),
}

/// The handler of the route.
pub(super) async fn invocations(
    State(state): State<AppState>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    Ok(match read_as(request, &state, Invocation::parse).await? {
        Invocation::Native(request) => compat::answer(&state, context, request).await?,
        Invocation::Chat(body) => chat_completions::answer(&state, context, body).await.into_response(),
        Invocation::Completion(body) => completions::answer(&state, context, body).await.into_response(),
    })
}

impl Invocation {
    fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let keys: Map<String, Value> = parse_body(bytes)?;
        if keys.contains_key("inputs") {
            parse_body(bytes).map(Self::Native)
        } else if keys.contains_key("messages") {
            OpenAiBody::parse(bytes).map(Self::Chat)
        } else if keys.contains_key("prompt") {
            OpenAiBody::parse(bytes).map(Self::Completion)
        } else {
            Err(ApiError::NoPrompt)
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use serde_json::json;

    use crate::testing::{FakeShard, TestServer};

    #[tokio::test]
    async fn the_body_says_which_route_is_meant() {
        let server = TestServer::start(FakeShard::default(), &[]).await;
        let native = json!({"inputs": "a", "parameters": {"max_new_tokens": 2}});
        assert_eq!(server.post_ok("/invocations", &native).await, server.post_ok("/", &native).await);
        let chat = json!({"messages": [{"role": "user", "content": "a"}], "temperature": 0, "max_tokens": 2});
        let completion = json!({"prompt": "a", "temperature": 0, "max_tokens": 2});
        for (body, path) in [(chat, "/v1/chat/completions"), (completion, "/v1/completions")] {
            let [here, there] = [server.post_ok("/invocations", &body).await, server.post_ok(path, &body).await];
            assert_eq!((&here["choices"], &here["object"]), (&there["choices"], &there["object"]));
        }
        let nothing = server.post("/invocations", &json!({"text": "a"})).await;
        assert_eq!(nothing.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(nothing.text.contains("`inputs`, `messages` or `prompt`"), "{}", nothing.text);
    }
}
