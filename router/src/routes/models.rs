//! `GET /v1/models` and `GET /v1/models/{id}`: a description of the one model that this server serves, under each of
//! its names, for clients of OpenAI's and of Anthropic's API.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;

use crate::api::openai::{Model, Models};
use crate::error::ApiError;
use crate::state::AppState;

/// The handler for the list of models.
pub(super) async fn models(State(state): State<AppState>) -> Json<Models> {
    Json(Models::new(state.served_names().iter().map(|name| served(&state, name)).collect()))
}

/// The handler for one model. The id is the rest of the path, because model ids may contain slashes.
pub(super) async fn model(
    State(state): State<AppState>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Json<Model>, Response> {
    // A path that is not UTF-8 names no model.
    let id = id.map_or_else(|_| uri.path().to_owned(), |Path(id)| id);
    if state.served_names().contains(&id) {
        return Ok(Json(served(&state, &id)));
    }
    let error = ApiError::NoSuchModel { given: id, served: state.served_names().join(", ") };
    Err(error.for_path(uri.path(), &headers))
}

fn served(state: &AppState, name: &str) -> Model {
    Model::new(name, state.info().limits.request.max_total_tokens)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{FakeShard, TestServer, json};

    #[tokio::test]
    async fn a_model_is_served_under_each_of_its_names() {
        let server = TestServer::start(FakeShard::default(), &["--served-model-name", "a/b,c"]).await;
        let models = json(&server.get("/v1/models").await.text);
        assert_eq!([&models["data"][0]["id"], &models["data"][1]["id"]], ["a/b", "c"]);
        assert_eq!((&models["first_id"], &models["last_id"]), (&json!("a/b"), &json!("c")));
        assert_eq!(json(&server.get("/v1/models/c").await.text)["id"], "c");
        let other = server.get("/v1/models/demo").await;
        assert_eq!(other.status, 404);
        let no_text = server.get("/v1/models/%ff%fe").await;
        assert_eq!(no_text.status, 404);
        assert!(json(&no_text.text)["error"]["message"].as_str().unwrap().contains("%ff%fe"), "{}", no_text.text);
        assert!(other.text.contains("a/b, c"), "{}", other.text);
        let completion =
            server.post_ok("/v1/completions", &json!({"prompt": "a", "model": "c", "max_tokens": 2})).await;
        assert_eq!(completion["model"], "a/b");
        let metrics = server.get("/metrics").await.text;
        for line in [
            r#"vllm:request_success_total{model_name="a/b",engine="0",finished_reason="length"} 1"#,
            r#"vllm:generation_tokens_total{model_name="a/b",engine="0"} 2"#,
            r#"vllm:time_to_first_token_seconds_count{model_name="a/b",engine="0"} 1"#,
            r#"vllm:request_generation_tokens_sum{model_name="a/b",engine="0"} 2"#,
        ] {
            assert!(metrics.contains(line), "{line} in\n{metrics}");
        }
        assert!(metrics.contains(r#"vllm:cache_config_info{model_name="a/b",engine="0",block_size=""#), "{metrics}");
    }
}
