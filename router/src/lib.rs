//! The router. It serves text generation over HTTP: it converts text to tokens and back, and schedules sequences. The
//! model runs in the shards.
//!
//! Life of a request: a handler in `routes` reads the body with `api` → `api::parameters` makes
//! [`proto::SamplingParams`] → `generation` takes a permit → `validation` tokenizes (`text`) and checks → `generation`
//! submits → the `batcher`'s loop → `scheduler` returns a step → `shard_client` → socket → reply → `scheduler` → events
//! → `generation::stream` detokenizes and looks for stop strings → `api` shapes the response.
//!
//! The entry point is [`run`]; the launcher calls [`run_as_process`] in a process of its own.

#![forbid(unsafe_code)]

mod answering;
mod api;
mod api_keys;
mod args;
mod argv;
mod aside;
mod batcher;
mod config;
mod connections;
mod delivery;
mod error;
mod generation;
mod grammar;
mod host_page;
mod http_listener;
mod kv_events;
mod lifecycle;
mod memory;
mod memory_size;
mod metrics;
mod places;
mod process_limits;
mod ready;
mod routes;
mod server;
mod startup;
mod state;
mod take_deadline;
#[cfg(test)]
mod testing;
mod text;
mod tls;
mod validation;

use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;

use build_id::Build;
use model_files::{ModelFiles, ModelFilesError};
use proto::exit_status;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

pub use args::{BatchingArgs, ChatArgs, HttpArgs, LimitArgs, RouterArgs};
pub use batcher::BatcherError;
pub use config::ConfigError;
pub use grammar::{GrammarTrialArgs, try_grammar_as_process};
pub use host_page::{HostFacts, HostPage, HostStage};
pub use http_listener::{HttpEndpoint, HttpEndpointError, ListenError};
pub use kv_events::{KvEventsConfig, KvEventsConfigError, KvEventsError, Publisher, probe as probe_kv_events};
pub use lifecycle::STOP_MARGIN;
pub use memory_size::{MemorySize, MemorySizeError};
pub use ready::{BEAT, PORT_WANTED, Ready};
pub use shard_client::ShardClientError;
pub use text::{ChatRendererArgs, Detokenizer, TextError, Tokenizer, render_chats_as_process};

use config::{Config, ServingLimits};
use http_listener::HttpListener;
use lifecycle::StopRequests;
use text::ModelText;

/// The maximum number of threads for HTTP, detokenizing and the batcher. A few are enough for their small messages, and
/// shards on the CPU need the processors.
const MAX_ASYNC_THREADS: usize = 4;

/// The error with which the router ends.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum RouterError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Model(#[from] ModelFilesError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    KvEvents(#[from] KvEventsError),
    #[error("a thread cannot be started")]
    Thread { source: std::io::Error },
    #[error("the signals SIGTERM and SIGINT cannot be handled")]
    Signals { source: std::io::Error },
    #[error("{path}, to which the router reports that it is ready, cannot be written")]
    Ready { path: PathBuf, source: std::io::Error },
    #[error("the metrics cannot be set up")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    #[error(transparent)]
    Shard(#[from] ShardClientError),
    #[error(transparent)]
    Batcher(#[from] BatcherError),
    #[error("the batching task panicked, which is a defect of this server")]
    BatcherPanicked,
}

impl RouterError {
    /// Returns the exit status of the process.
    fn exit_status(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Model(_) | Self::Text(_) | Self::Listen(_) | Self::KvEvents(_) => {
                exit_status::CONFIGURATION
            }
            Self::Shard(error) | Self::Batcher(BatcherError::Shard(error)) => error.exit_status(),
            Self::Batcher(BatcherError::Reply(_)) => exit_status::DEVICE,
            Self::Thread { .. }
            | Self::Signals { .. }
            | Self::Ready { .. }
            | Self::Metrics(_)
            | Self::BatcherPanicked => exit_status::FAILURE,
        }
    }
}

/// Runs the router as a process of its own: starts logging, serves, and ends when the parent process ends. `parent_pid`
/// is the parent's process id, if known. `build` is that of this executable if the shards run it too; shards of another
/// one then refuse the router. If the router fails, the last line of the log gives the reason. Returns one of the
/// statuses in [`proto::exit_status`].
pub fn run_as_process(args: &RouterArgs, parent_pid: Option<i32>, build: Option<Build>) -> ExitCode {
    if let Err(error) = telemetry::init(args.json_output, &args.log_level) {
        let _ = clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{error}\n")).print();
        return ExitCode::from(exit_status::CONFIGURATION);
    }
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        tracing::warn!(%error, "this router will not end when the process that started it ends");
    }
    // If the parent ended before the signal was requested, no signal comes, so the parent is checked here.
    if parent_pid.is_some_and(|pid| getppid().map(Pid::as_raw_pid) != Some(pid)) {
        telemetry::fatal("the process that started the router is gone");
        return ExitCode::from(exit_status::FAILURE);
    }
    match run(args, build) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            telemetry::fatal(&chain(&error));
            ExitCode::from(error.exit_status())
        }
    }
}

/// Checks the flags about HTTP and conversations without a model: the endpoint, the origins, the API keys, the memory
/// budget, and the files that the flags name. Each returned sentence describes one mistake.
pub fn check_flags(http: &HttpArgs, chat: &ChatArgs) -> Vec<String> {
    config::check_http(http).err().into_iter().flatten().chain(config::chat_overrides(chat).check()).collect()
}

/// Checks the arguments and reads the model's tokenizer, as the router does when it starts.
///
/// # Errors
/// When the arguments are invalid, or the model's files or tokenizer cannot be read.
pub fn check(args: &RouterArgs) -> Result<(), RouterError> {
    let config = Config::resolve(args)?;
    Tokenizer::load(&model_files(&config)?)?;
    Ok(())
}

/// Returns the limits that the router will request from the shards.
pub fn wishes(args: &RouterArgs) -> proto::Warmup {
    startup::wanted_limits(&args.limits, &args.batching)
}

/// Prints the OpenAPI document of the HTTP API on stdout.
pub fn print_schema() -> ExitCode {
    telemetry::print_result(&(routes::openapi::text() + "\n"), ExitCode::SUCCESS)
}

/// Serves until SIGTERM or SIGINT. The port opens when the shards are warmed up; then the router logs `ready` and
/// writes to `--ready-path`.
///
/// # Errors
/// When the router cannot start, or a shard fails while serving.
pub fn run(args: &RouterArgs, build: Option<Build>) -> Result<(), RouterError> {
    let config = Config { build, ..Config::resolve(args)? };
    // The launcher has probed the endpoint, and holds its port.
    if config.ready_path.is_none() {
        config.endpoint.probe()?;
    }
    probe_kv_events(&config.kv_events)?;
    let num_threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_ASYNC_THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(num_threads)
        .thread_name("router")
        .enable_all()
        .build()
        .map_err(|source| RouterError::Thread { source })?;
    if let Some(path) = &config.ready_path {
        runtime.spawn(ready::beat(path.clone()));
    }
    let text = ModelText::load(&model_files(&config)?, config.chat_overrides())?;
    let result = runtime.block_on(start_and_serve(config, text));
    // Tasks may wait for threads that compute, such as masks of grammars, which nobody needs any more.
    runtime.shutdown_timeout(lifecycle::TASKS_END);
    result
}

fn model_files(config: &Config) -> Result<ModelFiles, ModelFilesError> {
    match &config.model_path {
        Some(path) => ModelFiles::open(&path.display().to_string()),
        None => ModelFiles::open(&config.model_id),
    }
}

async fn start_and_serve(config: Config, text: ModelText) -> Result<(), RouterError> {
    let mut stops = StopRequests::from_signals().map_err(|source| RouterError::Signals { source })?;
    let (endpoint, shutdown_timeout, model_id, ready_path) =
        (config.endpoint.clone(), config.shutdown_timeout, config.model_id.clone(), config.ready_path.clone());
    let started = tokio::select! {
        started = startup::start(config, text) => started?,
        reason = stops.next() => {
            tracing::info!("{reason}: stopping before the start is complete");
            return Ok(());
        }
    };
    let listener = match &ready_path {
        Some(path) => {
            ready::ask_for_port(path).map_err(|source| RouterError::Ready { path: path.clone(), source })?;
            endpoint.listen_soon().await?
        }
        None => endpoint.listen()?,
    };
    announce(&listener, &model_id, &started.limits);
    if let Some(path) = ready_path {
        let limits = &started.limits.request;
        let (max_input_tokens, max_total_tokens) = (limits.max_input_tokens, limits.max_total_tokens);
        let ready = Ready { url: listener.to_string(), model_id, max_input_tokens, max_total_tokens };
        ready.write(&path).map_err(|source| RouterError::Ready { path, source })?;
    }
    lifecycle::serve(started, listener, stops, shutdown_timeout).await
}

/// Logs that the server is ready.
fn announce(listener: &HttpListener, model_id: &str, limits: &ServingLimits) {
    tracing::info!(
        url = %listener,
        model_id,
        max_input_tokens = limits.request.max_input_tokens,
        max_total_tokens = limits.request.max_total_tokens,
        max_batch_size = limits.scheduler.max_batch_size,
        max_batch_total_tokens = limits.max_batch_total_tokens,
        max_batch_prefill_tokens = limits.scheduler.max_batch_prefill_tokens,
        max_concurrent_requests = limits.request.max_concurrent_requests,
        "ready"
    );
}

/// Returns an error's message, followed by the messages of its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use rustix::process::{getpid, kill_process};

    use super::*;
    use crate::testing::{FakeShard, config, until, within};

    #[tokio::test]
    async fn a_signal_ends_the_router_without_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shard");
        let shard = FakeShard::default();
        let stats = Arc::clone(&shard.stats);
        shard.listen(&path, 0, 1);
        let config = config(&path, &[]);
        let text = ModelText::load(&ModelFiles::Demo, config.chat_overrides()).unwrap();
        let router = tokio::spawn(start_and_serve(config, text));
        // The router handles signals before it sends the first command to the shard. An earlier signal would end the
        // test process.
        until("the first command to the shard", || stats.num_warmups.load(Ordering::Relaxed) > 0).await;
        kill_process(getpid(), Signal::TERM).unwrap();
        within("the end of the router", router).await.unwrap().unwrap();
    }

    #[test]
    fn a_port_that_is_taken_is_noticed_before_anything_is_loaded() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = format!("--port={}", listener.local_addr().unwrap().port());
        let error = run(&testing::args(&["--hostname=127.0.0.1", &port, "--model-id=/nowhere"]), None).unwrap_err();
        assert!(chain(&error).starts_with("cannot listen on 127.0.0.1:"), "{}", chain(&error));
    }
}
