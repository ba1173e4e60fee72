//! Tests of whole runs against a server in this process. The path in the URL selects how the server responds:
//! correctly, wrongly or never.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Barrier, Notify};

use crate::args::{Args, Plan};
use crate::load;
use crate::report::Report;

type Body = Channel<Bytes, std::io::Error>;

const KEEP_ALIVE: &str = ": still there\n\n";
const TOKEN: &str = "data: {\"token\":{\"text\":\" a\",\"special\":false},\"generated_text\":null}\n\n";
const LAST_TOKEN: &str = "data: {\"token\":{\"text\":\" b\",\"special\":false},\"generated_text\":\" a b\",\
                          \"details\":{\"input_length\":7}}\n\n";

/// The streams of `/v1/completions` that different servers send for the same three tokens, the second of which does not
/// complete a character. The streams differ: they have chunks for two or three tokens, the reason for the end and the
/// usage are in the last chunk or after it, and TGI's earlier chunks have an empty reason.
const COMPLETIONS: [(&str, &str); 4] = [
    ("openai", include_str!("completions/openai.sse")),
    ("vllm", include_str!("completions/vllm.sse")),
    ("llama-cpp", include_str!("completions/llama-cpp.sse")),
    ("tgi", include_str!("completions/tgi.sse")),
];

/// The maximum time of a wait, far longer than any wait in a correct test.
const DEADLINE: Duration = Duration::from_secs(60);

/// The state that all connections of the server share.
struct Server {
    bodies: Mutex<Vec<Value>>,
    /// The barrier at which the two streams of `/together` wait until both have started.
    both: Barrier,
    has_come: Notify,
}

impl Server {
    /// Starts a server on a port that the system chooses. Returns the server, and its URL without a path.
    async fn start() -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Arc::new(Self { bodies: Mutex::default(), both: Barrier::new(2), has_come: Notify::new() });
        let shared = Arc::clone(&server);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let server = Arc::clone(&shared);
                let service = service_fn(move |request| Arc::clone(&server).answer(request));
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        (server, url)
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        self.bodies.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
        self.has_come.notify_one();
        if path.starts_with("/mute") {
            std::future::pending::<()>().await;
        }
        let (events, body) = Channel::new(1);
        let mut response = Response::new(body);
        if path.starts_with("/full") {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        tokio::spawn(async move { self.stream(&path, events).await });
        Ok(response)
    }

    async fn stream(&self, path: &str, mut events: Sender<Bytes, std::io::Error>) {
        let (behaviour, _) = path[1..].split_once('/').unwrap();
        let of_completions =
            |name: &str| COMPLETIONS.iter().find(|(server, _)| *server == name).map(|(_, stream)| *stream);
        let completions: Option<Vec<&str>> = match behaviour.strip_prefix("cut-off-") {
            Some(server) => of_completions(server).map(|stream| stream.split_inclusive("\n\n").take(1).collect()),
            None => of_completions(behaviour).map(|stream| stream.split_inclusive("\n\n").collect()),
        };
        let script: &[&str] = match behaviour {
            "good" => &[TOKEN, KEEP_ALIVE, TOKEN, LAST_TOKEN],
            "full" => &[r#"{"error":"Model is overloaded"}"#],
            "error" => &[TOKEN, "data: {\"error\":\"no memory\",\"error_type\":\"generation\"}\n\n"],
            "strange" => &["data: {\"id\":3}\n\n"],
            _ => &[TOKEN],
        };
        for part in completions.as_deref().unwrap_or(script) {
            let _ = events.send_data(Bytes::copy_from_slice(part.as_bytes())).await;
        }
        match behaviour {
            "together" => {
                self.both.wait().await;
                let _ = events.send_data(Bytes::from_static(LAST_TOKEN.as_bytes())).await;
            }
            "broken" => events.abort(std::io::Error::other("the server fell over")),
            "silent" => while events.send_data(Bytes::from_static(KEEP_ALIVE.as_bytes())).await.is_ok() {},
            _ => {}
        }
    }
}

fn args(url: &str, flags: &[&str]) -> Args {
    let flags = ["text-generation-bench", "--url", url].into_iter().chain(flags.iter().copied());
    Args::parse_from(flags)
}

/// Runs the load without an interruption and returns the report.
async fn report(url: &str, flags: &[&str]) -> Report {
    let args = args(url, flags);
    let Plan { client, workload, load } = args.plan().unwrap();
    let run = load::run(load, Arc::new(workload), Arc::new(client), std::future::pending());
    let run = tokio::time::timeout(DEADLINE, run).await.expect("the load ends in time");
    Report::new(args, &run)
}

#[tokio::test]
async fn streams_that_end_well_are_measured() {
    let (server, url) = Server::start().await;
    let report = report(&format!("{url}/good/"), &["--num-requests", "5", "--concurrency", "2"]).await;
    assert_eq!((report.num_succeeded, report.num_failed, report.num_output_tokens), (5, 0, 15));
    for summary in [report.time_to_first_token_ms, report.inter_token_latency_ms, report.end_to_end_ms] {
        assert!(summary.is_some());
    }
    assert!(report.to_string().contains("prompt tokens         35\n"), "{report}");
    assert_eq!(server.bodies.lock().unwrap()[0]["parameters"]["max_new_tokens"], 100);
}

#[tokio::test]
async fn completions_of_every_server_are_understood() {
    let (server, url) = Server::start().await;
    let flags = ["--num-requests", "2", "--api", "completions", "--model", "m", "--ignore-eos"];
    for (name, _) in COMPLETIONS {
        let full = report(&format!("{url}/{name}"), &flags).await;
        assert_eq!((full.num_succeeded, full.num_output_tokens), (2, 6), "{name}: {full}");
        assert!(full.to_string().contains("counted by usage\n"), "{name}: {full}");
        assert!(full.to_string().contains("prompt tokens         14\n"), "{name}: {full}");
        assert!(full.inter_token_latency_ms.is_some(), "{name}");
        let cut_off = report(&format!("{url}/cut-off-{name}"), &flags).await;
        assert_eq!((cut_off.num_succeeded, cut_off.failures["stream broke off"].count), (0, 2), "{name}");
    }
    assert_eq!(server.bodies.lock().unwrap()[0]["ignore_eos"], json!(true));
}

#[tokio::test]
async fn failures_are_counted_by_kind_with_the_words_of_the_first() {
    let (_server, url) = Server::start().await;
    for (behaviour, kind, words) in [
        ("full", "status 429", "Model is overloaded"),
        ("error", "error in the stream", "no memory"),
        ("broken", "stream broke off", "the stream broke off: "),
        ("short", "stream broke off", "it ended after 1 tokens, before its last event"),
        ("strange", "unknown event", "{\"id\":3}"),
        ("mute", "timeout", "the server sent no event for 50ms"),
        ("silent", "timeout", "the server sent no event for 50ms"),
    ] {
        let read_timeout = if kind == "timeout" { "0.05" } else { "60" };
        let flags = ["--num-requests", "3", "--concurrency", "3", "--read-timeout", read_timeout];
        let report = report(&format!("{url}/{behaviour}"), &flags).await;
        assert_eq!((report.num_succeeded, report.num_failed), (0, 3), "{behaviour}");
        let failure = &report.failures[kind];
        assert_eq!(failure.count, 3, "{behaviour}");
        assert!(failure.first.contains(words), "{behaviour}: {}", failure.first);
    }
}

#[tokio::test]
async fn a_stream_that_goes_on_and_on_ends_at_the_limit_of_a_request() {
    let (_server, url) = Server::start().await;
    let report = report(&format!("{url}/silent"), &["--num-requests", "1", "--request-timeout", "0.05"]).await;
    assert!(report.failures["timeout"].first.contains("not complete after 50ms"));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let report = report(&url, &["--num-requests", "1"]).await;
    assert!(report.failures["no connection"].first.starts_with("cannot connect: "));
}

#[tokio::test]
async fn clients_of_a_closed_loop_run_at_the_same_time() {
    let (_server, url) = Server::start().await;
    let report = report(&format!("{url}/together"), &["--num-requests", "4", "--concurrency", "2"]).await;
    assert_eq!((report.num_succeeded, report.num_output_tokens), (4, 8));
}

#[tokio::test]
async fn an_open_loop_does_not_wait_for_answers() {
    let (_server, url) = Server::start().await;
    let report = report(&format!("{url}/together"), &["--num-requests", "4", "--rate", "1000"]).await;
    assert_eq!(report.num_succeeded, 4);
    assert!(report.to_string().contains("late\n"), "{report}");
}

#[tokio::test]
async fn an_open_loop_ends_with_its_duration() {
    let (server, url) = Server::start().await;
    let report = report(&format!("{url}/good"), &["--rate", "400", "--duration", "0.1"]).await;
    assert!(report.num_succeeded > 0);
    assert_eq!(report.num_succeeded, server.bodies.lock().unwrap().len() as u64);
}

#[tokio::test]
async fn conversations_repeat_what_was_said() {
    let (server, url) = Server::start().await;
    let report = report(&format!("{url}/good"), &["--num-requests", "5", "--turns", "3"]).await;
    assert_eq!(report.num_succeeded, 5);
    let bodies = server.bodies.lock().unwrap();
    let prompts: Vec<&str> = bodies.iter().map(|body| body["inputs"].as_str().unwrap()).collect();
    for (before, after, continues) in [(0, 1, true), (1, 2, true), (2, 3, false), (3, 4, true)] {
        assert_eq!(prompts[after].starts_with(&format!("{} a a b\n", prompts[before])), continues, "{before}");
    }
}

#[tokio::test]
async fn an_interruption_reports_what_there_is() {
    let (server, url) = Server::start().await;
    let args = args(&format!("{url}/mute"), &["--num-requests", "3"]);
    let Plan { client, workload, load } = args.plan().unwrap();
    let has_come = tokio::time::timeout(DEADLINE, server.has_come.notified());
    let interrupted = async { has_come.await.expect("a request comes") };
    let run = load::run(load, Arc::new(workload), Arc::new(client), interrupted).await;
    let report = Report::new(args, &run);
    assert_eq!((report.num_succeeded, report.num_failed, report.num_unfinished), (0, 0, 1));
    assert!(report.to_string().contains("; interrupted, 1 were running\n"), "{report}");
}
