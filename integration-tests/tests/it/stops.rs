//! Tests of a server that stops: it refuses new requests, lets running ones finish, and tells those whose time is over,
//! whatever they wait for.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use integration_tests::{Server, request_head, send_signal};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::{DEADLINE, join_scoped, until};

const HEALTH: &str = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";

/// A connection on which HTTP is written as text.
trait Wire: Read + Write {}
impl Wire for TcpStream {}
impl Wire for UnixStream {}

/// Sends `text` and returns everything until the end of the connection.
fn exchange(mut wire: Box<dyn Wire>, text: &str) -> String {
    wire.write_all(text.as_bytes()).expect("a server that reads");
    let mut answer = String::new();
    wire.read_to_string(&mut answer).expect("an answer");
    answer
}

fn read_until(wire: &mut dyn Wire, end: &str) -> String {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(end.as_bytes()) {
        wire.read_exact(&mut byte).expect("an answer");
        text.push(byte[0]);
    }
    String::from_utf8(text).expect("an answer in UTF-8")
}

fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    request_head(path, body.len(), None) + &body
}

/// Stops a server that streams, and checks what clients get on new, idle and busy connections, which `connect` opens.
fn check_drain(server: Server, connect: &dyn Fn() -> Box<dyn Wire>) {
    let mut idle = connect();
    idle.write_all(HEALTH.as_bytes()).expect("a server that reads");
    assert!(read_until(&mut *idle, "\r\n\r\n").starts_with("HTTP/1.1 200"));
    let mut silent = connect();
    let mut running = connect();
    let body = json!({"inputs": "Once", "parameters": {"max_new_tokens": 300}});
    running.write_all(post("/generate_stream", &body).as_bytes()).expect("a server that reads");
    read_until(&mut *running, "data:");
    server.signal(Signal::TERM);
    assert_eq!(idle.read(&mut [0]).expect("an end, not a reset"), 0, "an idle connection stays open");
    silent.write_all(HEALTH.as_bytes()).expect("a server that reads");
    let early = exchange(silent, "");
    let requests = ["/health", "/ready", "/info"].map(|path| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
    let requests = requests.into_iter().chain(["/generate", "/v1/chat/completions"].map(|path| post(path, &body)));
    for answer in requests.map(|request| exchange(connect(), &request)).chain([early]) {
        let is_right = answer.starts_with("HTTP/1.1 503") && answer.contains("\r\nconnection: close\r\n");
        assert!(is_right, "{answer}");
    }
    let rest = exchange(running, "");
    assert!(rest.contains("\"generated_text\":\"") && !rest.contains("\"error\""), "{rest}");
    let finished = server.wait();
    assert_eq!(finished.status.code(), Some(0), "{:#?}", finished.log);
}

#[test]
fn a_draining_server_answers_until_it_exits() {
    let slow = || Server::mock().flag("--mock-step-us", 10_000);
    let server = slow().start();
    let address = server.address();
    check_drain(server, &|| {
        let stream = TcpStream::connect(address).expect("a server that listens");
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Box::new(stream)
    });
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("http");
    let server = slow().flag("--uds", socket.display()).start();
    check_drain(server, &|| {
        let stream = UnixStream::connect(&socket).expect("a server that listens");
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Box::new(stream)
    });
    assert!(!socket.exists(), "the socket is left behind");
}

#[test]
fn a_stop_tells_everybody_behind_a_step_that_does_not_end() {
    let server = Server::demo().flag("--shutdown-timeout", 1).start();
    let client = server.client();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let cases = [
        ("/generate", json!({"inputs": "Once"})),
        ("/generate", json!({"inputs": "Once", "parameters": {"best_of": 2, "do_sample": true}})),
        ("/generate_stream", json!({"inputs": "Once"})),
        ("/v1/completions", json!({"prompt": "Once", "stream": true})),
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/chat/completions", json!({"messages": messages, "stream": true})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 9, "stream": true})),
        ("/v1/responses", json!({"input": "Once", "stream": true})),
    ];
    // While the shard is stopped, no step ends.
    send_signal(server.child("shard"), Signal::STOP);
    let answers: Vec<String> = std::thread::scope(|scope| {
        let clients = cases.iter().map(|(path, body)| {
            let stream = TcpStream::connect(server.address()).expect("a server that listens");
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            scope.spawn(move || exchange(Box::new(stream), &post(path, body)))
        });
        let clients: Vec<_> = clients.collect();
        until("the requests to arrive", || client.metrics().value("tgi_request_max_new_tokens_count") == 8.0);
        server.signal(Signal::TERM);
        clients.into_iter().map(|client| join_scoped(client, "an answer")).collect()
    });
    for ((path, body), answer) in cases.iter().zip(answers) {
        let status = if body["stream"] == true || *path == "/generate_stream" { 200 } else { 503 };
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
        assert_eq!(answer.matches("the server is shutting down").count(), 1, "{path}: {answer}");
    }
    let finished = server.wait();
    assert_eq!(finished.status.code(), Some(0), "{:#?}", finished.log);
}
