//! Tests of a server with a real port, from its first connection to its last.
//!
//! Most tests stop the server, make a shard fail, or disconnect clients. The system chooses the ports, and the shards'
//! sockets are in a temporary directory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::*;
use crate::http_listener::HttpEndpoint;
use crate::testing::{DEADLINE, FakeShard, args, start, until, until_async, within};

/// A health check on a connection that stays open.
const HEALTH: &str = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";

/// The number of steps under way at a time.
const STEP_WINDOW: usize = 2;

struct Served {
    address: std::net::SocketAddr,
    stops_tx: mpsc::Sender<&'static str>,
    metrics: Arc<Metrics>,
    result: JoinHandle<Result<(), RouterError>>,
    _directory: TempDir,
}

async fn serve_with(shard: FakeShard, shutdown_timeout: Duration) -> Served {
    serve_with_flags(shard, shutdown_timeout, &[]).await
}

async fn serve_with_flags(shard: FakeShard, shutdown_timeout: Duration, flags: &[&str]) -> Served {
    let (started, directory) = start(shard, flags).await;
    let endpoint = HttpEndpoint::resolve(&args(&["--hostname=127.0.0.1", "--port=0"]).http).unwrap();
    let listener = endpoint.listen().unwrap();
    let address = listener.to_string().strip_prefix("http://").unwrap().parse().unwrap();
    let (stops_tx, stops) = StopRequests::channel();
    let metrics = Arc::clone(&started.metrics);
    let result = tokio::spawn(serve(started, listener, stops, shutdown_timeout));
    Served { address, stops_tx, metrics, result, _directory: directory }
}

impl Served {
    /// Sends a request for `num_tokens` tokens, followed by the bytes of `behind` after the body.
    async fn post_with(&self, path: &str, num_tokens: u32, behind: &str) -> TcpStream {
        let mut stream = self.post(path, num_tokens).await;
        stream.write_all(behind.as_bytes()).await.unwrap();
        stream
    }

    /// Sends a request for `num_tokens` tokens.
    async fn post(&self, path: &str, num_tokens: u32) -> TcpStream {
        self.post_body(path, &format!(r#"{{"inputs":"a","parameters":{{"max_new_tokens":{num_tokens}}}}}"#)).await
    }

    async fn post_body(&self, path: &str, body: &str) -> TcpStream {
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        self.send(&format!("{head}{body}")).await
    }

    /// Sends `text` on a new connection.
    async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// Asks the server to stop, and waits until it drains.
    async fn drain(&self) {
        self.stops_tx.send("test").await.unwrap();
        until_async("the drain", async || read_head(&mut self.send(HEALTH).await).await.starts_with("HTTP/1.1 503"))
            .await;
    }

    async fn wait_for_metric(&self, line: &str) {
        until(line, || self.metrics.render().lines().any(|candidate| candidate == line)).await;
    }

    async fn result(self) -> Result<(), RouterError> {
        within("the end of the server", self.result).await.unwrap()
    }
}

/// Reads the head of a response without a body.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within("the head of a response", stream.read_u8()).await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    within("the end of the response", stream.read_to_string(&mut text)).await.unwrap();
    text
}

/// Returns a shard that runs `num_steps` steps and then waits, and a semaphore whose permits allow more steps.
fn shard_with_steps(num_steps: usize) -> (FakeShard, Arc<Semaphore>) {
    let shard = FakeShard { steps: Arc::new(Semaphore::new(num_steps)), ..FakeShard::default() };
    let steps = Arc::clone(&shard.steps);
    (shard, steps)
}

#[tokio::test]
async fn running_requests_end_before_the_server_does() {
    let (shard, steps) = shard_with_steps(2);
    let stats = Arc::clone(&shard.stats);
    let served = serve_with(shard, DEADLINE).await;
    let mut stream = served.post("/generate_stream", 5).await;
    served.wait_for_metric("tgi_batch_inference_count{method=\"decode\"} 3").await;
    served.drain().await;
    steps.add_permits(10);
    let text = read_all(&mut stream).await;
    assert!(text.contains("\"index\":5") && !text.contains("\"error\""), "{text}");
    served.result().await.unwrap();
    assert_eq!(stats.num_leaves.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_second_wish_ends_them_at_once() {
    let (shard, steps) = shard_with_steps(2);
    let served = serve_with(shard, DEADLINE).await;
    let mut stream = served.post("/generate_stream", 50).await;
    served.wait_for_metric("tgi_batch_inference_count{method=\"decode\"} 3").await;
    served.stops_tx.send("test").await.unwrap();
    served.stops_tx.send("test").await.unwrap();
    let text = read_all(&mut stream).await;
    assert_eq!(text.matches("the server is shutting down").count(), 1, "{text}");
    steps.add_permits(STEP_WINDOW);
    served.result().await.unwrap();
}

#[tokio::test]
async fn a_request_that_outlasts_the_shutdown_gets_an_error() {
    let (shard, steps) = shard_with_steps(1);
    let served = serve_with(shard, Duration::ZERO).await;
    let mut stream = served.post("/generate", 50).await;
    served.wait_for_metric("tgi_batch_inference_count{method=\"decode\"} 2").await;
    served.stops_tx.send("test").await.unwrap();
    let text = read_all(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("the server is shutting down"), "{text}");
    steps.add_permits(STEP_WINDOW);
    served.result().await.unwrap();
}

#[tokio::test]
async fn requests_behind_a_step_that_does_not_end_are_told_in_their_dialects() {
    let (shard, _steps) = shard_with_steps(0);
    let served = serve_with(shard, Duration::ZERO).await;
    let message = r#""messages":[{"role":"user","content":"a"}]"#;
    let cases = [
        ("/generate", r#"{"inputs":"a"}"#.to_owned(), 503, r#""error_type":"stopping""#),
        ("/generate", r#"{"inputs":"a","parameters":{"best_of":2,"do_sample":true}}"#.to_owned(), 503, "stopping"),
        ("/generate_stream", r#"{"inputs":"a"}"#.to_owned(), 200, r#""error_type":"stopping""#),
        ("/v1/completions", r#"{"prompt":"a","n":2}"#.to_owned(), 503, r#""code":"stopping""#),
        ("/v1/completions", r#"{"prompt":"a","n":2,"stream":true}"#.to_owned(), 200, "data: [DONE]"),
        ("/v1/chat/completions", format!("{{{message}}}"), 503, r#""type":"server_error""#),
        ("/v1/chat/completions", format!(r#"{{{message},"stream":true}}"#), 200, r#""code":"stopping""#),
        ("/v1/responses", r#"{"input":"a","stream":true}"#.to_owned(), 200, "event: response.failed"),
        ("/v1/messages", format!(r#"{{{message},"max_tokens":9}}"#), 503, "overloaded_error"),
        ("/v1/messages", format!(r#"{{{message},"max_tokens":9,"stream":true}}"#), 200, "event: error"),
    ];
    let mut clients = Vec::new();
    for (path, body, ..) in &cases {
        clients.push(served.post_body(path, body).await);
    }
    // One for each choice.
    served.wait_for_metric("tgi_request_max_new_tokens_count 12").await;
    served.stops_tx.send("test").await.unwrap();
    for ((path, body, status, part), client) in cases.iter().zip(&mut clients) {
        let text = read_all(client).await;
        let is_right = text.starts_with(&format!("HTTP/1.1 {status}")) && text.contains(part);
        assert!(is_right && text.contains("the server is shutting down"), "{path} {body}: {text}");
    }
    // The second choice of a request ends with the first one.
    served.wait_for_metric("tgi_request_failure{err=\"generation\"} 10").await;
    served.result().await.unwrap();
}

#[tokio::test]
async fn a_request_whose_body_is_incomplete_is_told_too() {
    let served = serve_with(FakeShard::default(), Duration::ZERO).await;
    let mut stream = served.send("POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 20\r\n\r\n{").await;
    // The server has read the request before it answers a later one.
    let mut other = served.post("/generate", 1).await;
    assert!(read_head(&mut other).await.starts_with("HTTP/1.1 200"));
    served.stops_tx.send("test").await.unwrap();
    let text = read_all(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("the server is shutting down"), "{text}");
    served.result().await.unwrap();
}

#[tokio::test]
async fn a_draining_server_refuses_new_requests_and_closes_idle_connections() {
    let (shard, steps) = shard_with_steps(2);
    let served = serve_with(shard, DEADLINE).await;
    let mut idle = served.send(HEALTH).await;
    assert!(read_head(&mut idle).await.starts_with("HTTP/1.1 200"));
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    let mut running = served.post("/generate_stream", 5).await;
    served.wait_for_metric("tgi_batch_inference_count{method=\"decode\"} 3").await;
    served.drain().await;
    assert_eq!(within("the end of the idle connection", idle.read(&mut [0])).await.unwrap(), 0);
    silent.write_all(HEALTH.as_bytes()).await.unwrap();
    let early = read_all(&mut silent).await;
    assert!(early.starts_with("HTTP/1.1 503") && early.contains("\r\nconnection: close\r\n"), "{early}");
    for path in ["/health", "/ready", "/", "/info", "/v1/models", "/nowhere"] {
        let text = read_all(&mut served.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await).await;
        assert!(text.starts_with("HTTP/1.1 503") && text.contains("\r\nconnection: close\r\n"), "{path}: {text}");
    }
    for path in ["/generate", "/generate_stream", "/v1/chat/completions", "/v1/messages", "/tokenize"] {
        let text = read_all(&mut served.post(path, 1).await).await;
        let has = |line: &str| text.contains(&format!("\r\n{line}\r\n"));
        assert!(text.starts_with("HTTP/1.1 503"), "{path}: {text}");
        assert!(has("connection: close") && has("retry-after: 1") && text.contains("shutting down"), "{path}: {text}");
    }
    let metrics = read_all(&mut served.send("GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await).await;
    assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains("connection: close"), "{metrics}");
    steps.add_permits(10);
    let text = read_all(&mut running).await;
    assert!(text.contains("\"index\":5") && !text.contains("\"error\""), "{text}");
    served.result().await.unwrap();
}

#[tokio::test]
async fn a_shard_that_dies_ends_the_server_after_every_client_was_told() {
    let served = serve_with(FakeShard { dies_at_step: Some(4), ..FakeShard::default() }, DEADLINE).await;
    let mut stream = served.post("/generate_stream", 50).await;
    let text = read_all(&mut stream).await;
    assert!(text.contains("\"index\":3") && text.matches("shard 0 closed the connection").count() == 1, "{text}");
    let error = served.result().await.unwrap_err();
    assert!(matches!(error, RouterError::Batcher(BatcherError::Shard(_))), "{error}");
}

#[tokio::test]
async fn clients_that_hang_up_are_noticed_also_without_a_stream() {
    let (shard, steps) = shard_with_steps(0);
    let stats = Arc::clone(&shard.stats);
    let served = serve_with(shard, DEADLINE).await;
    let clients = [served.post("/generate", 400).await, served.post("/generate_stream", 400).await];
    served.wait_for_metric("tgi_request_max_new_tokens_count 2").await;
    // Three steps are enough for both requests to be opened.
    steps.add_permits(3);
    until("two opened requests", || stats.num_opened.load(Ordering::Relaxed) >= 2).await;
    drop(clients);
    served.wait_for_metric("tgi_request_failure{err=\"dropped\"} 2").await;
    steps.add_permits(STEP_WINDOW);
    served.wait_for_metric("hilo_slots_used 0").await;
    served.wait_for_metric("hilo_kv_blocks_used 0").await;
}

#[tokio::test]
async fn bytes_after_a_body_hide_no_hang_up() {
    let (shard, steps) = shard_with_steps(0);
    let stats = Arc::clone(&shard.stats);
    let served = serve_with(shard, DEADLINE).await;
    let more = "POST /generate HTTP/1.1\r\nhost: x\r\n".to_owned() + &"x".repeat(50_000);
    let mut clients = Vec::new();
    for behind in ["\n", "x", &more] {
        clients.push(served.post_with("/generate", 400, behind).await);
        clients.push(served.post_with("/generate_stream", 400, behind).await);
    }
    served.wait_for_metric("tgi_request_max_new_tokens_count 6").await;
    // Ten steps are enough for all six requests to be opened.
    steps.add_permits(10);
    until("six opened requests", || stats.num_opened.load(Ordering::Relaxed) >= 6).await;
    drop(clients);
    served.wait_for_metric("tgi_request_failure{err=\"dropped\"} 6").await;
    steps.add_permits(STEP_WINDOW);
    served.wait_for_metric("hilo_slots_used 0").await;
}

#[tokio::test]
async fn a_client_that_only_stops_sending_gets_its_response() {
    let served = serve_with(FakeShard::default(), DEADLINE).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(read_all(&mut stream).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_client_that_reads_nothing_holds_no_permits() {
    let served = serve_with_flags(FakeShard::default(), DEADLINE, &["--max-concurrent-requests=8"]).await;
    let body = r#"{"prompt":"a","n":8,"max_tokens":400,"logprobs":5,"stream":true,"temperature":0}"#;
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let mut slow = socket.connect(served.address).await.unwrap();
    slow.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    served.wait_for_metric("tgi_request_max_new_tokens_count 8").await;
    let other_is_served = async {
        let mut status = [0; 12];
        while &status != b"HTTP/1.1 200" {
            let mut other = served.post("/generate_stream", 1).await;
            other.read_exact(&mut status).await.unwrap();
        }
    };
    within("permits that are given back", other_is_served).await;
    let page = served.metrics.render();
    let num_read = page.lines().find_map(|line| line.strip_prefix("tgi_request_success "));
    assert!(num_read.is_some_and(|number| ["0", "1"].contains(&number)), "{num_read:?}: the slow one has read nothing");
}

#[tokio::test(start_paused = true)]
async fn headers_that_do_not_come_end_the_connection() {
    let served = serve_with(FakeShard::default(), DEADLINE).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost:").await.unwrap();
    let mut text = String::new();
    within("the end of the connection", stream.read_to_string(&mut text)).await.unwrap();
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
}
