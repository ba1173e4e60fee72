//! Tests of servers that listen on something other than a plain port: HTTPS, a Unix socket, and shards on TCP instead
//! of Unix sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use integration_tests::{Server, ServerBuilder};
use serde_json::{Value, json};
use test_support::DEADLINE;

/// A self-signed certificate for the loopback address, in files with its private key.
struct Identity {
    certificate: String,
    certfile: PathBuf,
    keyfile: PathBuf,
}

impl Identity {
    fn new(directory: &Path) -> Self {
        let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let [certfile, keyfile] = ["cert.pem", "key.pem"].map(|name| directory.join(name));
        let certificate = pair.cert.pem();
        std::fs::write(&certfile, &certificate).expect("a writable directory");
        std::fs::write(&keyfile, pair.signing_key.serialize_pem()).expect("a writable directory");
        Self { certificate, certfile, keyfile }
    }

    fn server(&self) -> ServerBuilder {
        // The server also accepts vLLM's names of these flags.
        Server::mock().flag("--ssl-certfile", self.certfile.display()).flag("--tls-keyfile", self.keyfile.display())
    }
}

#[test]
fn https_serves_answers_and_streams() {
    let directory = tempfile::tempdir().unwrap();
    let identity = Identity::new(directory.path());
    let server = identity.server().start();
    let stranger = server.client();
    assert!(stranger.url("/").starts_with("https://127.0.0.1:"), "{}", stranger.url("/"));
    assert!(stranger.post_bytes("/generate", b"{}").is_err(), "a client that does not know the certificate");

    let client = stranger.trusting(&identity.certificate);
    // One client sends nothing and one does not speak TLS. Neither affects other clients.
    let address = stranger.url("").replace("https://", "");
    let _dawdler = TcpStream::connect(&address).unwrap();
    let mut plain = TcpStream::connect(&address).unwrap();
    plain.set_read_timeout(Some(DEADLINE)).unwrap();
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    plain.read_to_end(&mut answer).unwrap();
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");

    assert_eq!(client.get("/health").status, 200);
    let text = client.generate("Once", 8);
    let body = json!({"inputs": "Once", "parameters": {"max_new_tokens": 8}});
    let events: Vec<_> = client.stream("/generate_stream", &body).unwrap().collect();
    assert_eq!((events.len(), &events[7]["generated_text"]), (8, &json!(text)));
    assert_eq!(server.stop().status.code(), Some(0));
}

#[test]
fn files_that_are_no_identity_are_found_before_the_model_is_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let Identity { certfile, keyfile, .. } = Identity::new(directory.path());
    for (flags, sentence) in [
        (vec![("--tls-certfile", &certfile)], "`tls_certfile` is set and `tls_keyfile` is not"),
        (vec![("--tls-certfile", &certfile), ("--tls-keyfile", &certfile)], "has no private key in PEM"),
        (vec![("--tls-certfile", &keyfile), ("--tls-keyfile", &keyfile)], "has no certificate in PEM"),
    ] {
        let server = flags.iter().fold(Server::mock(), |server, (name, path)| server.flag(name, path.display()));
        let finished = server.spawn().wait();
        assert_eq!(finished.status.code(), Some(2), "{finished:?}");
        let log = finished.log.join("\n");
        assert!(log.contains(sentence) && !log.contains("shard"), "{log}");
    }
}

/// Sends a POST request over a Unix socket and returns the response as text: its head and its body.
fn post_over(socket: &Path, path: &str, body: &Value) -> String {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = UnixStream::connect(socket).expect("a server that listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("the duration is not zero");
    stream.write_all((head + &body).as_bytes()).expect("a server that reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_unix_socket_serves_answers_and_streams_and_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("http");
    drop(UnixListener::bind(&socket).unwrap());
    let server = Server::mock().flag("--uds", socket.display()).start();
    assert_eq!(server.client().url(""), format!("unix:{}", socket.display()));

    let body = json!({"inputs": "Once", "parameters": {"max_new_tokens": 3}});
    let whole = post_over(&socket, "/generate", &body);
    assert!(whole.starts_with("HTTP/1.1 200 OK\r\n") && whole.contains("{\"generated_text\":"), "{whole}");
    let stream = post_over(&socket, "/generate_stream", &body);
    assert_eq!(stream.matches("data: {").count(), 3, "{stream}");

    let second = Server::mock().flag("--uds", socket.display()).spawn().wait();
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    assert!(second.log.join("\n").contains("is in use by another process"), "{:?}", second.log);
    assert!(post_over(&socket, "/tokenize", &body).starts_with("HTTP/1.1 200 OK"), "the first goes on");

    assert_eq!(server.stop().status.code(), Some(0));
    assert!(!socket.exists(), "the socket is left behind");
}

#[test]
fn a_path_that_cannot_be_a_socket_is_found_before_the_model_is_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let long = directory.path().join("x".repeat(107));
    for (path, sentence) in [(&file, "exists and is not a socket"), (&long, "a Unix socket allows 107")] {
        let finished = Server::mock().flag("--uds", path.display()).spawn().wait();
        assert_eq!(finished.status.code(), Some(2), "{finished:?}");
        assert!(finished.log.join("\n").contains(sentence), "{:?}", finished.log);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn shards_on_tcp_make_the_same_text() {
    let server = || Server::mock().flag("--num-shard", 2);
    let text = server().start().client().generate("Once", 8);
    // Outgoing connections of other tests get ports of 127.0.0.1, so none takes the port of this address after it was
    // freed.
    let address = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
    let server = server().flag("--shard-uds-path", format!("tcp://{address}")).start();
    assert_eq!(server.client().generate("Once", 8), text);
    assert!(TcpStream::connect(address).is_ok(), "a shard listens there");
    assert_eq!(server.stop().status.code(), Some(0));
}

#[test]
fn shards_listen_on_loopback_addresses_only() {
    let finished = Server::mock().flag("--shard-uds-path", "tcp://0.0.0.0:9000").spawn().wait();
    assert_eq!(finished.status.code(), Some(2), "{finished:?}");
    assert!(finished.log.join("\n").contains("0.0.0.0 is not a loopback address"), "{:?}", finished.log);
}
