//! The life of a server: it serves until a signal or a failure, then ends in an orderly way.
//!
//! ```text
//!  signal ─▶ new requests get 503 ─▶ running requests end, or are told after --shutdown-timeout ─▶ shards leave ─▶
//!  port closed
//!  shard fails ─▶ every request gets an error, new ones get 503 ─▶ port closed ─▶ error
//! ```
//!
//! A second signal ends the wait for running requests. Whoever waits for a sequence tells its client (`shutdown`), not
//! the batcher, which may be in a long step. `docs/limits.md` has the sum of all waits.

mod shutdown;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use ::metrics::Gauge;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};

use crate::RouterError;
use crate::batcher::BatcherError;
use crate::http_listener::HttpListener;
use crate::metrics::Metrics;
use crate::places::{Places, Rule};
use crate::server::{self, Site};
use crate::startup::Started;
pub(crate) use shutdown::{Ending, Shutdown, Stage, Visit};

/// The maximum time for clients to read the last events after their generations were ended.
const FAREWELL: Duration = Duration::from_secs(2);

/// The maximum time for the shards to finish their steps and to confirm that they leave, after the last request. A
/// shard that takes longer leaves when the router has ended.
const LEAVE: Duration = Duration::from_secs(1);

/// The maximum time for connections to end after the port was closed.
const CLOSE: Duration = Duration::from_millis(500);

/// The maximum time for tasks and for the threads that they use to end, after everything else has ended.
pub(crate) const TASKS_END: Duration = Duration::from_millis(500);

/// The maximum time from the end of `--shutdown-timeout` to the end of the router.
pub const STOP_MARGIN: Duration = FAREWELL.saturating_add(LEAVE).saturating_add(CLOSE).saturating_add(TASKS_END);

/// The interval at which samples of histograms are moved into buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// A channel of requests to stop the server. Each request is its reason, such as the name of a signal. The channel
/// holds two requests, because more have no effect.
#[derive(Debug)]
pub(crate) struct StopRequests(mpsc::Receiver<&'static str>);

impl StopRequests {
    /// Turns SIGTERM and SIGINT into requests to stop. Without a handler, these signals would kill the process.
    ///
    /// # Errors
    /// When the system refuses to install the handlers.
    pub(crate) fn from_signals() -> std::io::Result<Self> {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (requests_tx, requests) = Self::channel();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                let _ = requests_tx.try_send(name);
            }
        });
        Ok(requests)
    }

    /// Returns a channel, for requests that do not come from signals.
    pub(crate) fn channel() -> (mpsc::Sender<&'static str>, Self) {
        let (requests_tx, requests_rx) = mpsc::channel(2);
        (requests_tx, Self(requests_rx))
    }

    /// Waits for the next request and returns its reason. Waits forever if all senders are gone.
    pub(crate) async fn next(&mut self) -> &'static str {
        match self.0.recv().await {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }
}

/// The tasks that run while requests are served.
#[derive(Debug)]
struct Tasks {
    http: JoinHandle<()>,
    batcher: JoinHandle<Result<(), BatcherError>>,
    shutdown: Shutdown,
    /// Sending `true` ends the running sequences, then the batcher.
    stop_tx: watch::Sender<bool>,
}

/// Serves until a signal or a failure. Returns when requests, the batcher and the shards have ended, or when the time
/// for them is over.
///
/// # Errors
/// When a shard or the batcher fails. Clients receive an error first.
pub(crate) async fn serve(
    started: Started,
    listener: HttpListener,
    mut stops: StopRequests,
    shutdown_timeout: Duration,
) -> Result<(), RouterError> {
    let Started { app, batcher, stop_tx, shutdown, metrics, limits, memory } = started;
    let upkeep = tokio::spawn(upkeep(metrics));
    let site = Site {
        app,
        places: Places::new(memory.connections, ("HTTP connections", Rule::All), Gauge::noop()),
        request_timeout: limits.request.request_timeout,
        shutdown: shutdown.clone(),
    };
    let http = tokio::spawn(server::serve(listener, site));
    let mut tasks = Tasks { http, batcher: tokio::spawn(batcher.run()), shutdown, stop_tx };
    let result = tokio::select! {
        reason = stops.next() => {
            tracing::info!("{reason}: new requests are refused, and running requests may finish");
            tasks.drain(&mut stops, shutdown_timeout).await
        }
        result = &mut tasks.batcher => tasks.fail(result).await,
    };
    tasks.close().await;
    upkeep.abort();
    result
}

impl Tasks {
    /// Ends the requests and the shards after a signal: first the running requests, then the shards.
    async fn drain(&mut self, stops: &mut StopRequests, shutdown_timeout: Duration) -> Result<(), RouterError> {
        self.shutdown.advance(Stage::Draining);
        let is_drained = tokio::select! {
            () = self.shutdown.visits_ended() => true,
            () = tokio::time::sleep(shutdown_timeout) => false,
            _ = stops.next() => false,
            result = &mut self.batcher => return self.fail(result).await,
        };
        if !is_drained {
            tracing::warn!("the requests that still run are ended");
            self.say_farewell().await;
        }
        self.stop_tx.send_replace(true);
        match tokio::time::timeout(LEAVE, &mut self.batcher).await {
            Ok(result) => into_result(result),
            Err(_) => {
                tracing::warn!("the shards did not end their steps and leave within {} s", LEAVE.as_secs());
                Ok(())
            }
        }
    }

    /// Ends the requests after the batcher has ended by itself.
    async fn fail(&mut self, result: Result<Result<(), BatcherError>, JoinError>) -> Result<(), RouterError> {
        self.say_farewell().await;
        into_result(result)
    }

    /// Ends the requests that still run, and waits until their clients have read so.
    async fn say_farewell(&self) {
        self.shutdown.advance(Stage::Ending);
        let _ = tokio::time::timeout(FAREWELL, self.shutdown.visits_ended()).await;
    }

    /// Closes the port.
    async fn close(&mut self) {
        self.shutdown.advance(Stage::Closed);
        let _ = tokio::time::timeout(CLOSE, &mut self.http).await;
    }
}

fn into_result(result: Result<Result<(), BatcherError>, JoinError>) -> Result<(), RouterError> {
    match result {
        Ok(result) => Ok(result?),
        Err(_) => Err(RouterError::BatcherPanicked),
    }
}

async fn upkeep(metrics: Arc<Metrics>) {
    let mut interval = tokio::time::interval(UPKEEP);
    loop {
        interval.tick().await;
        metrics.upkeep();
    }
}
