//! A whole router in this process, without a port: tests pass requests to it directly.
//!
//! The test server is started by the same function as the real one. Instead of sleeping, tests wait until the metrics
//! have the expected values.

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use build_id::{Build, BuildId};
use clap::Parser;
use http_body_util::BodyExt;
use model_files::ModelFiles;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::{FakeShard, until, within};
use crate::RouterArgs;
use crate::batcher::BatcherError;
use crate::config::Config;
use crate::lifecycle::Shutdown;
use crate::metrics::Metrics;
use crate::startup;
use crate::text::ModelText;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    router: RouterArgs,
}

/// A router that is connected to a fake shard.
pub(crate) struct TestServer {
    pub(crate) app: Router,
    pub(crate) stop_tx: watch::Sender<bool>,
    pub(crate) shutdown: Shutdown,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) batcher: JoinHandle<Result<(), BatcherError>>,
    _directory: TempDir,
}

/// A whole response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

/// Parses the body of a response as JSON.
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the router's arguments for these flags.
pub(crate) fn args(flags: &[&str]) -> RouterArgs {
    Cli::parse_from(["router"].iter().chain(flags)).router
}

/// The build of the router in tests.
fn build() -> Build {
    let id = BuildId("b0b1b2b3b4b5b6b7b8b9".to_owned());
    let (target, profile, features) = ("x86_64-unknown-linux-gnu", "debug", "fxsr,sse2");
    Build { version: "0.1.0", id, commit: Some("c0ffee"), target, profile, features }
}

/// Returns the configuration for a shard at this path.
pub(crate) fn config(uds_path: &Path, flags: &[&str]) -> Config {
    let uds_path = format!("--shard-uds-path={}", uds_path.display());
    let flags = ["--hostname=127.0.0.1", "--port=0", &uds_path].into_iter().chain(flags.iter().copied());
    Config { build: Some(build()), ..Config::resolve(&args(&flags.collect::<Vec<_>>())).unwrap() }
}

/// Starts a server without a port, with its shard, and returns it when it is ready.
pub(crate) async fn start(shard: FakeShard, flags: &[&str]) -> (startup::Started, TempDir) {
    start_with(shard, &ModelFiles::Demo, flags).await
}

async fn start_with(shard: FakeShard, files: &ModelFiles, flags: &[&str]) -> (startup::Started, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let uds_path = directory.path().join("shard");
    shard.listen(&uds_path, 0, 1);
    let config = config(&uds_path, flags);
    let text = ModelText::load(files, config.chat_overrides()).unwrap();
    (startup::start(config, text).await.unwrap(), directory)
}

impl TestServer {
    pub(crate) async fn start(shard: FakeShard, flags: &[&str]) -> Self {
        Self::start_with(shard, &ModelFiles::Demo, flags).await
    }

    /// Starts a server with the tokenizer in `files`.
    pub(crate) async fn start_with(shard: FakeShard, files: &ModelFiles, flags: &[&str]) -> Self {
        let (started, directory) = start_with(shard, files, flags).await;
        let batcher = tokio::spawn(started.batcher.run());
        Self {
            app: started.app,
            stop_tx: started.stop_tx,
            shutdown: started.shutdown,
            metrics: started.metrics,
            batcher,
            _directory: directory,
        }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let answer = async {
            let (parts, body) = self.app.clone().oneshot(request).await.unwrap().into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.into()).unwrap() }
        };
        within("the response", answer).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Request::post(path).body(Body::from(body.to_string())).unwrap()).await
    }

    /// Sends a POST and returns the JSON of its successful response.
    pub(crate) async fn post_ok(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        json(&answer.text)
    }

    /// Sends a POST and returns the events of its stream.
    pub(crate) async fn post_stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        answer.events()
    }

    /// Waits until the metrics contain a line.
    pub(crate) async fn wait_for_metric(&self, line: &str) {
        until(line, || self.metrics.render().lines().any(|candidate| candidate == line)).await;
    }
}

impl Answer {
    /// Returns the events of a stream, and checks their framing.
    pub(crate) fn events(&self) -> Vec<Value> {
        let events = self.text.strip_suffix("\n\n").unwrap_or_else(|| panic!("{:?}", self.text)).split("\n\n");
        events.map(|event| json(event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event}")))).collect()
    }
}
