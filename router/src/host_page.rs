//! The pages of a host without a router. A host of a slice that has none shows its health and a few metrics. The host
//! of the router shows the progress of its start, until the router takes the port.
//!
//! Entry point: [`HostPage::start`]. The pages are served on a thread of their own, with the flags and limits of the
//! router's HTTP server.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics::Gauge;
use serde_json::json;

use crate::RouterError;
use crate::args::HttpArgs;
use crate::connections;
use crate::error::ApiError;
use crate::http_listener::HttpEndpoint;
use crate::lifecycle::{Shutdown, Stage};
use crate::memory::Part;
use crate::places::{Places, Rule};
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
    shown: Shown,
    shutdown: Shutdown,
}

/// The state that the handlers share.
#[derive(Debug, Clone)]
struct Shown {
    facts: Arc<HostFacts>,
    stage: Arc<AtomicU8>,
    /// The progress of each process of this host that has reported any, by number.
    progress: Arc<Mutex<BTreeMap<u32, Progress>>>,
}

/// The progress of a process in a phase of its start.
#[derive(Debug, Clone, PartialEq)]
struct Progress {
    phase: String,
    /// The share that is done, from 0 to 1.
    share: f64,
}

/// The seconds after which a client should ask a server that starts again.
const RETRY_AFTER_SECONDS: &str = "5";

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
        match facts.index {
            0 => tracing::info!(url = %listener, "/health shows the progress of the start"),
            _ => tracing::info!(url = %listener, "serving /health and /metrics of this host"),
        }
        let shown = Shown::new(facts);
        let connections = Part::new(CONNECTIONS_BYTES.min(connections::max_bytes()));
        let shutdown = Shutdown::new();
        let places = Places::new(connections, ("connections to the pages of this host", Rule::All), Gauge::noop());
        let site = Site { app: app(shown.clone()), places, request_timeout: None, shutdown: shutdown.clone() };
        let serve = move || runtime.block_on(server::serve(listener, site));
        std::thread::Builder::new()
            .name("host page".to_owned())
            .spawn(serve)
            .map_err(|source| RouterError::Thread { source })?;
        Ok(Self { shown, shutdown })
    }

    /// Shows a later stage. At the last one, connections no longer stay open after a response.
    pub fn show(&self, stage: HostStage) {
        self.shown.stage.store(stage as u8, Ordering::Relaxed);
        if stage == HostStage::Ending {
            self.shutdown.advance(Stage::Draining);
        }
    }

    /// Shows that process `number` of this host has done `done` of `total` items of a phase of its start.
    pub fn report(&self, number: u32, phase: &str, done: u64, total: u64) {
        let progress = Progress { phase: phase.to_owned(), share: done as f64 / total.max(1) as f64 };
        self.shown.progress().insert(number, progress);
    }

    /// Closes the port, so that the router can open it.
    pub fn close(&self) {
        self.shutdown.advance(Stage::Closed);
    }
}

impl Drop for HostPage {
    fn drop(&mut self) {
        self.close();
    }
}

fn app(shown: Shown) -> Router {
    if shown.facts.index == 0 {
        return Router::new().fallback(starting).with_state(shown);
    }
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
    fn new(facts: HostFacts) -> Self {
        let stage = Arc::new(AtomicU8::new(HostStage::Assembling as u8));
        Self { facts: Arc::new(facts), stage, progress: Arc::default() }
    }

    fn progress(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the progress of the process that is the furthest behind, while the host loads and one has reported any.
    fn last_progress(&self) -> Option<Progress> {
        let is_loading = self.stage() == HostStage::Loading;
        let progress = self.progress();
        let last = progress.values().min_by(|one, other| one.share.total_cmp(&other.share));
        last.filter(|_| is_loading).cloned()
    }

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
    let progress = shown.last_progress().map(|progress| format!(", {progress}")).unwrap_or_default();
    let text = format!("host {} of {}: {}{progress}\n", shown.facts.index, shown.facts.num_hosts, stage.name());
    (status, text).into_response()
}

/// Refuses every request to a server that starts, with its progress, or that is stopped before it serves.
async fn starting(State(shown): State<Shown>) -> Response {
    let stage = shown.stage();
    let phase = match stage {
        // The model is downloaded and checked.
        HostStage::Assembling if shown.facts.num_hosts == 1 => "preparing",
        stage => stage.name(),
    };
    let progress = shown.last_progress().unwrap_or_else(|| Progress { phase: phase.to_owned(), share: 0.0 });
    let error = match stage {
        HostStage::Ending => "the server is shutting down".to_owned(),
        HostStage::Assembling | HostStage::Loading | HostStage::Serving => format!("the server starts: {progress}"),
    };
    let (status, error_type) = ApiError::Unhealthy.status_and_type();
    let body = json!({
        "error": error,
        "error_type": error_type,
        "phase": progress.phase,
        "share": progress.share,
    });
    (status, [(header::RETRY_AFTER, RETRY_AFTER_SECONDS)], Json(body)).into_response()
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} %", self.phase, (self.share * 100.0).floor())
    }
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

    /// Returns the pages of a host of two, and a function that asks one of them for its status and body.
    fn pages(index: usize) -> (HostPage, impl AsyncFn(&str) -> (u16, String)) {
        let shown = Shown::new(HostFacts { index, num_hosts: 2, first: "a.example".to_owned() });
        let app = app(shown.clone());
        let ask = async move |path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = app.clone().oneshot(request).await.unwrap();
            let status = response.status().as_u16();
            let body = to_bytes(response.into_body(), 1 << 16).await.unwrap();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        (HostPage { shown, shutdown: Shutdown::new() }, ask)
    }

    #[tokio::test]
    async fn a_host_is_healthy_while_its_slice_serves() {
        let (page, ask) = pages(1);
        for (stage, status) in HostStage::ALL.into_iter().zip([503, 503, 200, 503]) {
            page.show(stage);
            assert_eq!(ask("/health").await.0, status, "{stage:?}");
        }
        page.show(HostStage::Loading);
        assert_eq!(ask("/ready").await, (503, "host 1 of 2: loading\n".to_owned()));
        page.report(2, "load weights", 3, 4);
        page.report(3, "load weights", 3, 9);
        assert_eq!(ask("/ready").await, (503, "host 1 of 2: loading, load weights 33 %\n".to_owned()));
        let metrics = ask("/metrics").await.1;
        for line in ["hilo_slice_hosts 2", "hilo_slice_host_index 1", "hilo_slice_host_stage{stage=\"loading\"} 1"] {
            assert!(metrics.lines().any(|found| found == line), "{metrics}");
        }
        let (status, text) = ask("/generate").await;
        assert_eq!(status, 421);
        assert!(text.ends_with("send requests to host 0, a.example\n"), "{text}");
    }

    #[tokio::test]
    async fn a_server_that_starts_shows_its_phase_and_the_share_done() {
        let (page, ask) = pages(0);
        let body = async |path: &str| {
            let (status, text) = ask(path).await;
            assert_eq!(status, 503, "{text}");
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        assert_eq!(body("/health").await["phase"], "assembling");
        page.show(HostStage::Loading);
        assert_eq!(body("/ready").await["phase"], "loading");
        page.report(0, "load weights", 9, 9);
        page.report(1, "load weights", 1, 4);
        let expected = json!({
            "error": "the server starts: load weights 25 %",
            "error_type": "healthcheck",
            "phase": "load weights",
            "share": 0.25,
        });
        for path in ["/ready", "/health", "/v1/chat/completions"] {
            assert_eq!(body(path).await, expected, "{path}");
        }
        page.report(1, "warm up", 2, 4);
        assert_eq!(body("/readyz").await["phase"], "warm up");
        page.show(HostStage::Ending);
        assert_eq!(body("/health").await["error"], "the server is shutting down");
    }

    #[tokio::test]
    async fn the_router_gets_the_port_when_it_wants_it() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let args = crate::testing::args(&["--hostname=127.0.0.1", &format!("--port={free}")]).http;
        let page = HostPage::start(&args, HostFacts { index: 0, num_hosts: 1, first: String::new() }).unwrap();
        let endpoint = HttpEndpoint::resolve(&args).unwrap();
        assert!(endpoint.listen().is_err());
        let listens = tokio::spawn(async move { endpoint.listen_soon().await });
        page.close();
        crate::testing::within("the port", listens).await.unwrap().unwrap();
    }
}
