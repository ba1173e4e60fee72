//! The connections: HTTP/1.1, with a deadline for whatever a client could leave half done.
//!
//! A handshake and headers must come within a time, what is sent must be taken within a time, connections are counted. It
//! knows nothing of routes.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::endpoint::{ClientStream, Listener};
use crate::take_deadline::TakeDeadline;
use crate::tls::Tls;

/// Connections at a time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 8192;

/// A client that shakes hands or sends its headers slower than this, or is silent for longer between two requests, is
/// cut off.
const HEADER_DEADLINE: Duration = Duration::from_secs(30);

/// A client that takes nothing of what was sent to it for this long is cut off (`TCP_USER_TIMEOUT` of `tcp(7)`, or a timer).
const TAKE_DEADLINE: Duration = Duration::from_secs(30);

/// After an accept that failed for lack of file descriptors, the next one is tried this much later.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a connection needs beside its stream.
struct Connection {
    app: Router,
    watcher: Watcher,
    stop_rx: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
}

/// Serves until `stop_rx` says true, then accepts no more and returns when every running request is answered.
pub(crate) async fn serve(listener: Listener, app: Router, stop_rx: watch::Receiver<bool>) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut stops = stop_rx.clone();
    loop {
        tokio::select! {
            (stream, permit) = accept(&listener, &connections) => {
                let (app, watcher, stop_rx) = (app.clone(), graceful.watcher(), stop_rx.clone());
                let connection = Connection { app, watcher, stop_rx, _permit: permit };
                tokio::spawn(connection.serve(stream, listener.tls().cloned()));
            }
            _ = stops.wait_for(|&stops| stops) => break,
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

async fn accept(listener: &Listener, connections: &Arc<Semaphore>) -> (ClientStream, OwnedSemaphorePermit) {
    let permit = Arc::clone(connections).acquire_owned().await.expect("this semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok(stream) => return (stream, permit),
            // This one connection ended before it began.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                tracing::warn!("accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Connection {
    async fn serve(mut self, stream: ClientStream, tls: Option<Tls>) {
        let stream = match stream {
            ClientStream::Tcp(stream) => stream,
            ClientStream::Unix(stream) => return self.serve_http(TakeDeadline::new(stream, TAKE_DEADLINE)).await,
        };
        if let Err(error) = set_options(&stream) {
            tracing::debug!("set the options of a connection: {error}");
        }
        let Some(tls) = tls else { return self.serve_http(stream).await };
        let handshake = tokio::select! {
            handshake = tokio::time::timeout(HEADER_DEADLINE, tls.accept(stream)) => handshake,
            // Who has not asked for anything gets no answer.
            _ = self.stop_rx.wait_for(|&stops| stops) => return,
        };
        match handshake {
            Ok(Ok(stream)) => self.serve_http(stream).await,
            Ok(Err(error)) => tracing::debug!("shake hands with a client: {error}"),
            Err(_) => tracing::debug!("a client did not shake hands within {} s", HEADER_DEADLINE.as_secs()),
        }
    }

    async fn serve_http(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEADER_DEADLINE);
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(self.app));
        if let Err(error) = self.watcher.watch(connection).await {
            tracing::debug!("serve a connection: {error}");
        }
    }
}

fn set_options(stream: &TcpStream) -> std::io::Result<()> {
    // A token is a small packet: it must not wait for the next one.
    stream.set_nodelay(true)?;
    let millis = u32::try_from(TAKE_DEADLINE.as_millis()).unwrap_or(u32::MAX);
    Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, millis)?)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::testing::args;

    /// A server with TLS and without routes; `true` stops it.
    async fn start() -> (SocketAddr, watch::Sender<bool>, tokio::task::JoinHandle<()>) {
        let directory = tempfile::tempdir().unwrap();
        let [certfile, keyfile] = ["cert", "key"].map(|name| directory.path().join(name));
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&certfile, pair.cert.pem()).unwrap();
        std::fs::write(&keyfile, pair.signing_key.serialize_pem()).unwrap();
        let files = [("cert", certfile), ("key", keyfile)];
        let files = files.map(|(what, path)| format!("--tls-{what}file={}", path.display()));
        let args = args(&["--hostname=127.0.0.1", "--port=0", &files[0], &files[1]]);
        let listener = Endpoint::resolve(&args.http).unwrap().listen().await.unwrap();
        let address = listener.to_string().strip_prefix("https://").unwrap().parse().unwrap();
        let (stop_tx, stop_rx) = watch::channel(false);
        (address, stop_tx, tokio::spawn(serve(listener, Router::new(), stop_rx)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_shake_hands_is_cut_off() {
        let (address, _stop_tx, _server) = start().await;
        let start = tokio::time::Instant::now();
        let mut client = TcpStream::connect(address).await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        assert!(start.elapsed() >= HEADER_DEADLINE, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn a_client_that_speaks_no_tls_is_sent_away() {
        let (address, _stop_tx, _server) = start().await;
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        let (alert, fatal) = (21, 2);
        assert_eq!((answer[0], answer[5]), (alert, fatal), "{answer:?}");
    }

    #[tokio::test]
    async fn who_has_not_shaken_hands_holds_up_no_stop() {
        let (address, stop_tx, server) = start().await;
        let mut client = TcpStream::connect(address).await.unwrap();
        stop_tx.send_replace(true);
        server.await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0);
    }
}
