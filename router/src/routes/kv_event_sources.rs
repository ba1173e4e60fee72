//! `GET /kv_event_sources`: the publishers of changes of the KV cache, as in vLLM: by data-parallel rank, which is
//! always 0 here. The object is empty if changes are not published.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::kv_events::KvEventsConfig;
use crate::state::AppState;

/// The configuration of each publisher, by data-parallel rank. The endpoints have the ports that the system chose.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KvEventSources(BTreeMap<String, KvEventsConfig>);

/// The handler of the route.
pub(super) async fn kv_event_sources(State(state): State<AppState>) -> Json<KvEventSources> {
    let source = state.info().kv_event_source.clone();
    Json(KvEventSources(source.into_iter().map(|source| ("0".to_owned(), source)).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{FakeShard, TestServer, json};

    #[tokio::test]
    async fn each_publisher_is_listed_with_its_port() {
        let server = TestServer::start(FakeShard::default(), &[]).await;
        assert_eq!(json(&server.get("/kv_event_sources").await.text), json!({}));
        let flag = r#"--kv-events-config={"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:*", "hwm": 7}"#;
        let server = TestServer::start(FakeShard::default(), &[flag]).await;
        let sources = json(&server.get("/kv_event_sources").await.text);
        let endpoint = sources["0"]["endpoint"].as_str().unwrap();
        assert!(endpoint.strip_prefix("tcp://127.0.0.1:").unwrap().parse::<u16>().unwrap() > 0);
        let expected = json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": null,
            "buffer_steps": 10_000,
            "hwm": 7,
            "max_queue_size": 100_000,
            "topic": "",
        });
        assert_eq!(sources, json!({"0": expected}));
    }
}
