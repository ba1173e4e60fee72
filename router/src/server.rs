//! Serves connections with HTTP/1.1, and cuts off clients that are too slow.
//!
//! The TLS handshake and the headers must arrive in time, and the client must read responses in time. (`api` sets the
//! deadline of request bodies.) The number of connections is limited.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use telemetry::Throttle;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::answering::{Answering, Visitor};
use crate::http_listener::HttpListener;
use crate::lifecycle::{Shutdown, Stage};
use crate::places::{Place, Places, address};
use crate::take_deadline::{AnswerDeadline, TakeDeadline};
use crate::tls::Tls;
use sockets::{Socket, Stream};

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

/// The application to serve, with its limits.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) app: Router,
    /// The places of all connections together.
    pub(crate) places: Places,
    /// The maximum time of a request in total, or `None` for no limit.
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) shutdown: Shutdown,
}

/// The state of a connection, except its stream.
struct Connection {
    site: Site,
    place: Arc<Place>,
}

/// Serves until the stage [`Stage::Closed`]. Then accepts no more connections, and returns when each response that has
/// begun was sent. Connections are accepted during the drain too, so that their clients are told.
pub(crate) async fn serve(listener: HttpListener, site: Site) {
    let (mut connections, mut failures) = (JoinSet::new(), Throttle::default());
    // A connection that was accepted and has no place yet.
    let mut newcomer: Option<Stream> = None;
    let mut closed = pin!(site.shutdown.reached(Stage::Closed));
    loop {
        tokio::select! {
            stream = accept(&listener, &mut failures), if newcomer.is_none() => newcomer = Some(stream),
            place = site.places.take(newcomer.as_ref().and_then(address)), if newcomer.is_some() => {
                if let Some(stream) = newcomer.take() {
                    let connection = Connection { site: site.clone(), place: Arc::new(place) };
                    connections.spawn(connection.keep_place(stream, listener.tls().cloned()));
                }
            }
            Some(_) = connections.join_next() => {}
            () = &mut closed => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn accept(listener: &HttpListener, failures: &mut Throttle) -> Stream {
    loop {
        match listener.accept().await {
            Ok(stream) => return stream,
            // Only this connection failed, before it was accepted.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                if let Some(num) = failures.count(std::time::Instant::now()) {
                    tracing::warn!("a connection cannot be accepted: {error} ({num} since the last such line)");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Connection {
    /// Serves until the connection ends, or another one needs its place.
    async fn keep_place(self, stream: Stream, tls: Option<Tls>) {
        let place = Arc::clone(&self.place);
        tokio::select! {
            () = self.serve(stream, tls) => {}
            () = place.dismissed() => {}
        }
    }

    async fn serve(self, stream: Stream, tls: Option<Tls>) {
        if let Stream::Tcp(stream) = &stream
            && let Err(error) = set_options(stream)
        {
            tracing::debug!("the options of a connection cannot be set: {error}");
        }
        let socket = Socket::new(stream);
        let deadline = AnswerDeadline::new(self.site.request_timeout);
        let stream = TakeDeadline::new(socket.clone(), TAKE_DEADLINE, deadline.clone());
        let visitor = Visitor::new(self.site.shutdown.clone());
        let place = Arc::clone(&self.place);
        let answering = Answering { app: self.site.app.clone(), socket, deadline, visitor, place };
        let Some(tls) = tls else { return self.serve_http(stream, answering).await };
        let handshake = tokio::select! {
            handshake = tokio::time::timeout(HEADER_DEADLINE, tls.accept(stream)) => handshake,
            // A client that is still in the handshake is cut off, because it has not sent a request yet.
            () = self.site.shutdown.reached(Stage::Closed) => return,
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
        let visitor = answering.visitor.clone();
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), answering));
        let ended = tokio::select! {
            // First, so that a request that has arrived is read before an idle connection ends.
            biased;
            ended = connection.as_mut() => ended,
            () = visitor.dismissed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
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
    use metrics::Gauge;
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::connections::CONNECTION_BYTES;
    use crate::http_listener::HttpEndpoint;
    use crate::memory::Part;
    use crate::places::Rule;
    use crate::testing::{args, within};

    /// The number of connections of a test's server.
    const NUM_PLACES: usize = 4;

    fn site(app: Router) -> Site {
        let places = Places::new(Part::new(NUM_PLACES * CONNECTION_BYTES), ("a test", Rule::All), Gauge::noop());
        Site { app, places, request_timeout: None, shutdown: Shutdown::new() }
    }

    /// Starts a server without TLS whose `/slow` never answers.
    async fn start_plain() -> (SocketAddr, tokio::task::JoinHandle<()>) {
        let app = Router::new()
            .route("/", axum::routing::get(|| async { "here" }))
            .route("/slow", axum::routing::get(|| async { std::future::pending::<()>().await }));
        let listener =
            HttpEndpoint::resolve(&args(&["--hostname=127.0.0.1", "--port=0"]).http).unwrap().listen().unwrap();
        let address = listener.to_string().strip_prefix("http://").unwrap().parse().unwrap();
        (address, tokio::spawn(serve(listener, site(app))))
    }

    async fn get(client: &mut TcpStream, path: &str) -> String {
        client.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut buffer = [0; 1024];
        let num_read = within("an answer", client.read(&mut buffer)).await.unwrap();
        String::from_utf8_lossy(&buffer[..num_read]).into_owned()
    }

    #[tokio::test]
    async fn idle_connections_keep_nobody_out() {
        let (address, _server) = start_plain().await;
        let mut idle = Vec::new();
        for _ in 0..2 * NUM_PLACES {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        // Half of a head, and half of a body, are no requests.
        for head in ["GET / HTTP/1.1\r\nhos", "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n1"] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(head.as_bytes()).await.unwrap();
            idle.push(client);
        }
        let mut honest = TcpStream::connect(address).await.unwrap();
        assert!(get(&mut honest, "/").await.ends_with("here"));
        assert_eq!(within("the end of the oldest", idle[0].read(&mut [0])).await.unwrap_or(0), 0);
    }

    #[tokio::test]
    async fn a_request_under_way_is_not_closed_for_a_newcomer() {
        let (address, _server) = start_plain().await;
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut kept = Vec::new();
        for _ in 0..2 * NUM_PLACES {
            let mut client = TcpStream::connect(address).await.unwrap();
            assert!(get(&mut client, "/").await.ends_with("here"));
            kept.push(client);
        }
        assert_eq!(slow.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        // After its answer, a connection stays open until its place is needed.
        let last = kept.last_mut().unwrap();
        assert!(get(last, "/").await.ends_with("here"));
    }

    /// Starts a server with TLS and without routes.
    async fn start() -> (SocketAddr, Shutdown, tokio::task::JoinHandle<()>) {
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
        let site = site(Router::new());
        (address, site.shutdown.clone(), tokio::spawn(serve(listener, site)))
    }

    /// Runs a client that reads at most `bytes` bytes of a 1 MiB response every second, and returns the number of bytes
    /// that the client read in total.
    async fn read_slowly(bytes: usize) -> usize {
        let app = Router::new().route("/", axum::routing::get(|| async { vec![0_u8; 1 << 20] }));
        let args = args(&["--hostname=127.0.0.1", "--port=0"]);
        let listener = HttpEndpoint::resolve(&args.http).unwrap().listen().unwrap();
        let address = listener.to_string().strip_prefix("http://").unwrap().parse().unwrap();
        let _server = tokio::spawn(serve(listener, site(app)));
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
        let (address, _, _server) = start().await;
        let start = tokio::time::Instant::now();
        let mut client = TcpStream::connect(address).await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        assert!(start.elapsed() >= HEADER_DEADLINE, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn a_client_that_speaks_no_tls_is_sent_away() {
        let (address, _, _server) = start().await;
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        within("the end of the connection", client.read_to_end(&mut answer)).await.unwrap();
        let (alert, fatal) = (21, 2);
        assert_eq!((answer[0], answer[5]), (alert, fatal), "{answer:?}");
    }

    #[tokio::test]
    async fn a_client_without_a_handshake_does_not_delay_a_stop() {
        let (address, shutdown, server) = start().await;
        let mut client = TcpStream::connect(address).await.unwrap();
        shutdown.advance(Stage::Closed);
        within("the end of the server", server).await.unwrap();
        assert_eq!(within("the end of the connection", client.read(&mut [0])).await.unwrap_or(0), 0);
    }
}
