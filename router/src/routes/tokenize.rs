//! `POST /tokenize`: the tokens of a prompt, with their offsets in bytes. Nothing is generated.

use axum::extract::State;
use axum::response::Response;

use crate::api::{GenerateRequest, JsonBody, RequestContext, token_list};
use crate::error::ApiError;
use crate::state::AppState;

/// The handler of the route.
pub(super) async fn tokenize(
    State(state): State<AppState>,
    context: RequestContext,
    JsonBody(request): JsonBody<GenerateRequest>,
) -> Result<Response, ApiError> {
    let _permit = state.generator().admit(context.tenant, 1, &context.request_id)?;
    let tokenized = state.chat().tokenize_prompt(request.inputs).await?;
    token_list(tokenized, &state.memory().answers).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{FakeShard, TestServer};

    #[tokio::test]
    async fn tokens_have_their_places() {
        let server = TestServer::start(FakeShard::default(), &[]).await;
        let text = "Once, é 🦜 1";
        let tokens = server.post_ok("/tokenize", &json!({"inputs": text, "parameters": {"truncate": 1}})).await;
        let tokens = tokens.as_array().unwrap();
        assert_eq!(tokens[0], json!({"id": 0, "text": "", "start": 0, "stop": 0}), "the special token has no text");
        let mut end = 0;
        for token in &tokens[1..] {
            let [start, stop] = ["start", "stop"].map(|name| token[name].as_u64().unwrap() as usize);
            assert!(start <= stop && start >= end.min(start), "{token}");
            assert!(text.get(start..stop).is_none_or(|part| token["text"] == part), "{token}");
            end = stop;
        }
        assert_eq!(end, text.len());
    }
}
