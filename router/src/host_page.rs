//! The pages of a host that belongs to a slice but has no router: its health, and a few metrics.
//!
//! Entry point: [`HostPage::start`]. The pages are served on a thread of their own, with the flags and limits of the
//! router's HTTP server.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::watch;

use crate::RouterError;
use crate::args::HttpArgs;
use crate::connections;
use crate::error::ApiError;
use crate::http_listener::HttpEndpoint;
use crate::memory::Part;
use crate::server::{self, Site};

/// The memory of all connections together, in bytes: room for some hundred probes and scrapers.
const CONNECTIONS_BYTES: usize = 16 << 20;

/// The facts about a host that its pages show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// The index of the host in its slice.
    pub index: usize,
    /// The number of hosts of the slice.
    pub num_hosts: usize,
    /// The name of host 0, which has the router.
    pub first: String,
}

/// The stage of a host in the life of its slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HostStage {
    /// Hosts are missing, or the model is downloaded.
    Assembling = 0,
    /// The shards load the model.
    Loading = 1,
    /// The slice serves.
    Serving = 2,
    /// The slice ends.
    Ending = 3,
}

/// The pages of a host, which are served until this value is dropped.
#[derive(Debug)]
pub struct HostPage {
    stage: Arc<AtomicU8>,
    _stop: watch::Sender<bool>,
}

/// The state that the handlers share.
#[derive(Debug, Clone)]
struct Shown {
    facts: Arc<HostFacts>,
    stage: Arc<AtomicU8>,
}

impl HostPage {
    /// Opens the port and serves the pages.
    ///
    /// # Errors
    /// When the flags are invalid, the address cannot be used, or no thread can be started.
    pub fn start(args: &HttpArgs, facts: HostFacts) -> Result<Self, RouterError> {
        let endpoint = HttpEndpoint::resolve(args).map_err(|error| RouterError::Config(error.into()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| RouterError::Thread { source })?;
        let listener = {
            let _context = runtime.enter();
            endpoint.listen()?
        };
        tracing::info!(url = %listener, "serving /health and /metrics of this host");
        let stage = Arc::new(AtomicU8::new(HostStage::Assembling as u8));
        let shown = Shown { facts: Arc::new(facts), stage: Arc::clone(&stage) };
        let connections = Part::new(CONNECTIONS_BYTES.min(connections::max_bytes()));
        let site = Site { app: app(shown), connections, request_timeout: None };
        let (stop, stop_rx) = watch::channel(false);
        let serve = move || runtime.block_on(server::serve(listener, site, stop_rx));
        std::thread::Builder::new()
            .name("host page".to_owned())
            .spawn(serve)
            .map_err(|source| RouterError::Thread { source })?;
        Ok(Self { stage, _stop: stop })
    }

    /// Shows a later stage.
    pub fn show(&self, stage: HostStage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }
}

fn app(shown: Shown) -> Router {
    let health = || get(health);
    Router::new()
        .route("/health", health())
        .route("/ready", health())
        .route("/readyz", health())
        .route("/ping", health())
        .route("/metrics", get(metrics))
        .fallback(elsewhere)
        .with_state(shown)
}

impl Shown {
    fn stage(&self) -> HostStage {
        match self.stage.load(Ordering::Relaxed) {
            0 => HostStage::Assembling,
            1 => HostStage::Loading,
            2 => HostStage::Serving,
            _ => HostStage::Ending,
        }
    }
}

impl HostStage {
    const ALL: [Self; 4] = [Self::Assembling, Self::Loading, Self::Serving, Self::Ending];

    fn name(self) -> &'static str {
        match self {
            Self::Assembling => "assembling",
            Self::Loading => "loading",
            Self::Serving => "serving",
            Self::Ending => "ending",
        }
    }
}

/// Succeeds while the whole slice serves.
async fn health(State(shown): State<Shown>) -> Response {
    let stage = shown.stage();
    let status = if stage == HostStage::Serving { StatusCode::OK } else { ApiError::Unhealthy.status_and_type().0 };
    (status, format!("host {} of {}: {}\n", shown.facts.index, shown.facts.num_hosts, stage.name())).into_response()
}

/// The metrics in the text format of Prometheus.
async fn metrics(State(shown): State<Shown>) -> Response {
    let HostFacts { index, num_hosts, .. } = *shown.facts;
    let mut text = String::new();
    for (name, help, value) in [
        ("hilo_slice_hosts", "Number of hosts of the slice", num_hosts),
        ("hilo_slice_host_index", "Index of this host in the slice", index),
    ] {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    }
    let name = "hilo_slice_host_stage";
    let _ = writeln!(text, "# HELP {name} 1 for the stage of this host, 0 for the others\n# TYPE {name} gauge");
    for stage in HostStage::ALL {
        let _ = writeln!(text, "{name}{{stage=\"{}\"}} {}", stage.name(), u8::from(stage == shown.stage()));
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn elsewhere(State(shown): State<Shown>) -> Response {
    let HostFacts { index, num_hosts, first } = shown.facts.as_ref();
    let text = format!(
        "this is host {index} of a slice of {num_hosts}, which serves only /health and /metrics; send requests to host \
         0, {first}\n"
    );
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn a_host_is_healthy_while_its_slice_serves() {
        let stage = Arc::new(AtomicU8::new(0));
        let facts = HostFacts { index: 1, num_hosts: 2, first: "a.example".to_owned() };
        let app = app(Shown { facts: Arc::new(facts), stage: Arc::clone(&stage) });
        let ask = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = app.clone().oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            let body = to_bytes(response.into_body(), 1 << 16).await.unwrap();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        for (shown, status) in [(0, 503), (1, 503), (2, 200), (3, 503)] {
            stage.store(shown, Ordering::Relaxed);
            assert_eq!(ask("/health").await.0, status, "{shown}");
        }
        stage.store(HostStage::Loading as u8, Ordering::Relaxed);
        assert_eq!(ask("/ready").await, (503, "host 1 of 2: loading\n".to_owned()));
        let metrics = ask("/metrics").await.1;
        for line in ["hilo_slice_hosts 2", "hilo_slice_host_index 1", "hilo_slice_host_stage{stage=\"loading\"} 1"] {
            assert!(metrics.lines().any(|found| found == line), "{metrics}");
        }
        let (status, text) = ask("/generate").await;
        assert_eq!(status, 421);
        assert!(text.ends_with("send requests to host 0, a.example\n"), "{text}");
    }
}
