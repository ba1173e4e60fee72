//! The listener and its connections: HTTP/1.1, with a deadline for whatever a client could leave half done.
//!
//! Headers must come within a time, what is sent must be taken within a time, connections are counted. It knows
//! nothing of routes.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Connections at a time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 8192;

/// A client that sends its headers slower than this, or is silent for longer between two requests, is cut off.
const HEADER_DEADLINE: Duration = Duration::from_secs(30);

/// A client that takes nothing of what was sent to it for this long is cut off (`TCP_USER_TIMEOUT` of `tcp(7)`).
const TAKE_DEADLINE: Duration = Duration::from_secs(30);

/// After an accept that failed for lack of file descriptors, the next one is tried this much later.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop_rx` says true, then accepts no more and returns when every running request is answered.
pub(crate) async fn serve(listener: TcpListener, app: Router, mut stop_rx: watch::Receiver<bool>) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    loop {
        tokio::select! {
            (stream, permit) = accept(&listener, &connections) => {
                tokio::spawn(serve_connection(stream, app.clone(), graceful.watcher(), permit));
            }
            _ = stop_rx.wait_for(|&stops| stops) => break,
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

async fn accept(listener: &TcpListener, connections: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    let permit = Arc::clone(connections).acquire_owned().await.expect("this semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            // This one connection ended before it began.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                tracing::warn!("accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, app: Router, watcher: Watcher, _permit: OwnedSemaphorePermit) {
    // A token is a small packet: it must not wait for the next one.
    let options = stream.set_nodelay(true).map_err(|error| error.to_string()).and_then(|()| {
        let millis = u32::try_from(TAKE_DEADLINE.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(&stream, millis).map_err(|error| error.to_string())
    });
    if let Err(error) = options {
        tracing::debug!("set the options of a connection: {error}");
    }
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_DEADLINE);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!("serve a connection: {error}");
    }
}
