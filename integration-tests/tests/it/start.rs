//! Tests of a launch before it serves: the progress that its port shows, and the keys in its command line.

use std::net::TcpListener;
use std::path::PathBuf;

use integration_tests::{Client, Server};
use serde_json::Value;
use test_support::until;

/// An address of this machine that no other test uses, so its port stays free.
const ADDRESS: &str = "127.83.1.7";

#[test]
fn a_server_that_starts_says_how_far_it_is_until_it_serves() {
    let port = TcpListener::bind((ADDRESS, 0)).unwrap().local_addr().unwrap().port();
    let server = Server::demo().flag("--hostname", ADDRESS).flag("--port", port).spawn();
    let client = Client::new(&format!("http://{ADDRESS}:{port}"));
    let mut phases: Vec<String> = Vec::new();
    let mut num_refused = 0;
    until("the server is ready", || {
        // The port is closed for a moment, when the router takes it.
        let Ok(ready) = client.try_get("/ready") else {
            num_refused += usize::from(!phases.is_empty());
            return false;
        };
        if ready.status == 200 {
            return true;
        }
        assert_eq!((ready.status, ready.header("retry-after")), (503, Some("5")), "{}", ready.text);
        let body: Value = ready.json();
        let share = body["share"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&share), "{body}");
        let phase = body["phase"].as_str().unwrap().to_owned();
        assert_eq!(body["error"], format!("the server starts: {phase} {} %", (share * 100.0).floor()));
        if phases.last() != Some(&phase) {
            phases.push(phase);
        }
        false
    });
    assert!(!phases.is_empty(), "nothing was shown before the server was ready");
    // From now on only the router has the port.
    for _ in 0..20 {
        assert_eq!(client.get("/ready").status, 200);
    }
    assert!(!client.generate("Once", 4).is_empty());
    assert_eq!(server.stop().status.code(), Some(0), "{phases:?}, refused {num_refused} times");
}

#[test]
fn an_api_key_is_in_no_command_line() {
    let server = Server::mock().flag("--api-key", "sesame-1").flag("--max-batch-size", 3).start();
    let lines = [server.pid().cast_signed()].into_iter().chain(server.descendants()).map(|pid| {
        let path = PathBuf::from(format!("/proc/{pid}/cmdline"));
        String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()
    });
    let lines: Vec<String> = lines.collect();
    assert!(lines.len() >= 3 && lines[0].contains("--max-batch-size"), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("sesame")), "{lines:?}");
    assert_eq!(server.client().get("/info").status, 401);
    assert_eq!(server.client().with_api_key("sesame-1").get("/info").json()["max_batch_size"], 3);
}
