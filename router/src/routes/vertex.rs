//! `POST /vertex`: the route that Vertex AI calls. The request has several prompts or conversations, and the response
//! has a generated text for each.
//!
//! TGI reads only `max_new_tokens` and `seed` here; this server reads all parameters.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::chat_completions::{self, Asked};
use crate::api::openai::OpenAiBody;
use crate::api::{GenerateRequest, JsonBody, RequestContext, parse_aside, parse_body};
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::state::AppState;
use crate::validation::Delivery;

/// The body of `POST /vertex`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct VertexRequest {
    /// The requests; each is a body of `/generate` or of `/v1/chat/completions`.
    #[schema(value_type = Vec<Object>)]
    instances: Vec<Value>,
}

/// The response of `POST /vertex`: a generated text for each instance.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VertexResponse {
    predictions: Vec<String>,
}

/// The handler of the route.
pub(super) async fn vertex(
    State(state): State<AppState>,
    context: RequestContext,
    JsonBody(request): JsonBody<VertexRequest>,
) -> Result<Json<VertexResponse>, ApiError> {
    if request.instances.is_empty() {
        return Err(ApiError::NoInstances);
    }
    let limit = state.info().config.limits.max_client_batch_size;
    if request.instances.len() > limit as usize {
        return Err(ApiError::TooManyPrompts { limit });
    }
    let predictions = request.instances.iter().map(|instance| predict(&state, context.clone(), instance));
    Ok(Json(VertexResponse { predictions: try_join_all(predictions).await? }))
}

async fn predict(state: &AppState, context: RequestContext, instance: &Value) -> Result<String, ApiError> {
    let bytes = Bytes::from(instance.to_string());
    let (permit, request) = if instance.get("messages").is_some() {
        let body = parse_aside(bytes, state, OpenAiBody::parse).await?;
        let Asked { permit, request, .. } = chat_completions::ask(state, context, body).await?;
        (permit, GenerationRequest { num_choices: 1, ..request })
    } else if instance.get("inputs").is_some() {
        let request: GenerateRequest = parse_aside(bytes, state, parse_body).await?;
        let tenant = context.tenant;
        let request = request.into_generation(context, state.sampling_defaults());
        (state.generator().admit_request(tenant, &request, Delivery::Whole)?, request)
    } else {
        return Err(ApiError::NoInstances);
    };
    Ok(state.generator().complete(permit, request).await?.best.finish.generated_text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{FakeShard, TestServer};

    #[tokio::test]
    async fn each_instance_has_a_prediction() {
        let server = TestServer::start(FakeShard::default(), &[]).await;
        let native = json!({"inputs": "a", "parameters": {"max_new_tokens": 3}});
        let chat = json!({"messages": [{"role": "user", "content": "a"}], "temperature": 0, "max_tokens": 3});
        let answer = server.post_ok("/vertex", &json!({"instances": [native, chat]})).await;
        let expected = [
            server.post_ok("/generate", &native).await["generated_text"].clone(),
            server.post_ok("/v1/chat/completions", &chat).await["choices"][0]["message"]["content"].clone(),
        ];
        assert_eq!(answer, json!({"predictions": expected}));
        for body in [json!({"instances": []}), json!({"instances": [{"text": "a"}]})] {
            let refused = server.post("/vertex", &body).await;
            assert!(refused.status == 422 && refused.text.contains("instances: "), "{}", refused.text);
        }
    }
}
