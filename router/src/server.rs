//! Serves connections with HTTP/1.1, and cuts off clients that are too slow.
//!
//! The TLS handshake and the headers must arrive in time, and the client must read responses in time. (`api` sets the
//! deadline of request bodies.) The number of connections is limited.

use std::io::ErrorKind;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::answering::Answering;
use crate::connections::CONNECTION_BYTES;
use crate::http_listener::HttpListener;
use crate::memory::{Held, Part};
use crate::socket::{Socket, Stream};
use crate::take_deadline::{AnswerDeadline, TakeDeadline};
use crate::tls::Tls;

/// The maximum size of a request's head, and of the bytes that wait to be written before the handler must pause.
const BUFFER_BYTES: usize = 32 << 10;

/// A client is cut off when its handshake or its headers take longer than this, or when it sends nothing for longer
/// between two requests.
const HEADER_DEADLINE: Duration = Duration::from_secs(30);

/// A client is cut off when nothing could be written to its connection for this long. The kernel accepts more bytes
/// only when a third of its send buffer is free. The kernel doubles [`SEND_BUFFER_BYTES`], so a client must read about
/// 1.5 KB per second.
const TAKE_DEADLINE: Duration = Duration::from_secs(60);
const SEND_BUFFER_BYTES: usize = 128 << 10;

/// The kernel closes a connection if the client's machine does not acknowledge data for this long (`TCP_USER_TIMEOUT`
/// of `tcp(7)`). The time also counts while the client's receive window is too small, so it is longer than
/// `TAKE_DEADLINE`.
const SILENCE_DEADLINE: Duration = Duration::from_secs(120);

/// The pause after an accept that failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The minimum time between two warnings about accepts that failed.
const WARNING_PAUSE: Duration = Duration::from_secs(10);

/// The application to serve, with its limits.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) app: Router,
    /// The memory of all connections together.
    pub(crate) connections: Part,
    /// The maximum time of a request in total, or `None` for no limit.
    pub(crate) request_timeout: Option<Duration>,
}

/// The state of a connection, except its stream.
struct Connection {
    site: Site,
    watcher: Watcher,
    stop_rx: watch::Receiver<bool>,
    _held: Held,
}

/// Accepts that failed and were not logged.
#[derive(Debug, Default)]
struct Failures {
    num_silent: u64,
    logged_at: Option<Instant>,
}

impl Failures {
    /// Counts a failure. If a warning is due, returns the number of failures since the last one, with this one.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.num_silent += 1;
        if self.logged_at.is_some_and(|at| now.saturating_duration_since(at) < WARNING_PAUSE) {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.num_silent))
    }
}

/// Serves until `stop_rx` is true. Then accepts no more connections, and returns when every running request has its
/// response.
pub(crate) async fn serve(listener: HttpListener, site: Site, stop_rx: watch::Receiver<bool>) {
    let graceful = GracefulShutdown::new();
    let (mut stops, mut failures) = (stop_rx.clone(), Failures::default());
    loop {
        tokio::select! {
            (stream, held) = accept(&listener, &site.connections, &mut failures) => {
                let (site, watcher, stop_rx) = (site.clone(), graceful.watcher(), stop_rx.clone());
                let connection = Connection { site, watcher, stop_rx, _held: held };
                tokio::spawn(connection.serve(stream, listener.tls().cloned()));
            }
            _ = stops.wait_for(|&stops| stops) => break,
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

async fn accept(listener: &HttpListener, connections: &Part, failures: &mut Failures) -> (Stream, Held) {
    let held = connections.take(CONNECTION_BYTES, Duration::MAX).await.expect("there is room for one connection");
    loop {
        match listener.accept().await {
            Ok(stream) => return (stream, held),
            // Only this connection failed, before it was accepted.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                if let Some(num) = failures.count(Instant::now()) {
                    tracing::warn!("a connection cannot be accepted: {error} ({num} since the last such line)");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Connection {
    async fn serve(mut self, stream: Stream, tls: Option<Tls>) {
        if let Stream::Tcp(stream) = &stream
            && let Err(error) = set_options(stream)
        {
            tracing::debug!("the options of a connection cannot be set: {error}");
        }
        let socket = Socket::new(stream);
        let deadline = AnswerDeadline::new(self.site.request_timeout);
        let stream = TakeDeadline::new(socket.clone(), TAKE_DEADLINE, deadline.clone());
        let answering = Answering { app: self.site.app.clone(), socket, deadline };
        let Some(tls) = tls else { return self.serve_http(stream, answering).await };
        let handshake = tokio::select! {
            handshake = tokio::time::timeout(HEADER_DEADLINE, tls.accept(stream)) => handshake,
            // When the server stops, a client that is still in the handshake is cut off, because it has not sent a
            // request yet.
            _ = self.stop_rx.wait_for(|&stops| stops) => return,
        };
        match handshake {
            Ok(Ok(stream)) => self.serve_http(stream, answering).await,
            Ok(Err(error)) => tracing::debug!("the TLS handshake with a client failed: {error}"),
            Err(_) => {
                tracing::debug!("a client did not finish the TLS handshake within {} s", HEADER_DEADLINE.as_secs())
            }
        }
    }

    async fn serve_http(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, answering: Answering) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEADER_DEADLINE).max_buf_size(BUFFER_BYTES);
        // `answering` decides if a client has left. With half-close, a client that has only stopped sending still gets
        // the bytes that are ready at that time.
        http.half_close(true);
        let connection = http.serve_connection(TokioIo::new(stream), answering);
        if let Err(error) = self.watcher.watch(connection).await {
            tracing::debug!("a connection ended with an error: {error}");
        }
    }
}

fn set_options(stream: &TcpStream) -> std::io::Result<()> {
    // Disables Nagle's algorithm, because a token is a small packet and must not wait for the next one.
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_send_buffer_size(stream, SEND_BUFFER_BYTES)?;
    let millis = u32::try_from(SILENCE_DEADLINE.as_millis()).unwrap_or(u32::MAX);
    Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, millis)?)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::http_listener::HttpEndpoint;
    use crate::testing::{args, within};

    fn site(app: Router) -> Site {
        Site { app, connections: Part::new(1 << 20), request_timeout: None }
    }

    /// Starts a server with TLS and without routes. Sending `true` to the returned sender stops the server.
    async fn start() -> (SocketAddr, watch::Sender<bool>, tokio::task::JoinHandle<()>) {
        let directory = tempfile::tempdir().unwrap();
        let [certfile, keyfile] = ["cert", "key"].map(|name| directory.path().join(name));
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&certfile, pair.cert.pem()).unwrap();
        std::fs::write(&keyfile, pair.signing_key.serialize_pem()).unwrap();
        let files = [("cert", certfile), ("key", keyfile)];
        let files = files.map(|(what, path)| format!("--tls-{what}file={}", path.display()));
        let args = args(&["--hostname=127.0.0.1", "--port=0", &files[0], &files[1]]);
        let listener = HttpEndpoint::resolve(&args.http).unwrap().listen().unwrap();
        let address = listener.to_string().strip_prefix("https://").unwrap().parse().unwrap();
        let (stop_tx, stop_rx) = watch::channel(false);
        (address, stop_tx, tokio::spawn(serve(listener, site(Router::new()), stop_rx)))
    }

    /// Runs a client that reads at most `bytes` bytes of a 1 MiB response every second, and returns the number of bytes
    /// that the client read in total.
    async fn read_slowly(bytes: usize) -> usize {
        let app = Router::new().route("/", axum::routing::get(|| async { vec![0_u8; 1 << 20] }));
        let args = args(&["--hostname=127.0.0.1", "--port=0"]);
        let listener = HttpEndpoint::resolve(&args.http).unwrap().listen().unwrap();
        let address = listener.to_string().strip_prefix("http://").unwrap().parse().unwrap();
        let (_stop_tx, stop_rx) = watch::channel(false);
        let _server = tokio::spawn(serve(listener, site(app), stop_rx));
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(8 << 10).unwrap();
        let mut client = socket.connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let (mut buffer, mut num_read) = (vec![0; bytes], 0);
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            match client.read(&mut buffer).await {
                Ok(0) | Err(_) => return num_read,
                Ok(num_bytes) => num_read += num_bytes,
            }
        }
    }

    #[test]
    fn failures_are_logged_once_in_a_while_with_their_number() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let logged: Vec<u64> = (0..250).filter_map(|count| failures.count(start + ACCEPT_PAUSE * count)).collect();
        assert_eq!(logged, [1, 100, 100]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_everything_and_a_stalled_one_does_not() {
        assert!(read_slowly(4 << 10).await > 1 << 20);
        assert!(read_slowly(100).await < 1 << 20);
    }

    #[tokio::test]
    async fn the_kernel_waits_longer_than_this_process() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        set_options(&stream).unwrap();
        let millis = rustix::net::sockopt::tcp_user_timeout(&stream).unwrap();
        assert!(Duration::from_millis(millis.into()) >= 2 * TAKE_DEADLINE);
        assert_eq!(rustix::net::sockopt::socket_send_buffer_size(&stream).unwrap(), 2 * SEND_BUFFER_BYTES);
        assert!(stream.nodelay().unwrap());
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
        within("the end of the connection", client.read_to_end(&mut answer)).await.unwrap();
        let (alert, fatal) = (21, 2);
        assert_eq!((answer[0], answer[5]), (alert, fatal), "{answer:?}");
    }

    #[tokio::test]
    async fn a_client_without_a_handshake_does_not_delay_a_stop() {
        let (address, stop_tx, server) = start().await;
        let mut client = TcpStream::connect(address).await.unwrap();
        stop_tx.send_replace(true);
        within("the end of the server", server).await.unwrap();
        assert_eq!(within("the end of the connection", client.read(&mut [0])).await.unwrap_or(0), 0);
    }
}
