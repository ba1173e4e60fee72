//! Tests of processes that hang, are paused or are frozen together (SIGSTOP). A process that hangs alone ends the
//! server in time, and its clients are told or disconnected. A pause of all processes loses nothing.

use std::time::Duration;

use integration_tests::{Client, Server, ServerBuilder, SseStream, pause, send_signal};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::until_within;

use crate::failures::{last_error, terminal_event, wait_until_gone};

/// The promised maximum time from the moment at which a process hangs to the exit of the launcher.
const HANG_DEADLINE: Duration = Duration::from_secs(25);
/// Longer than any time after which a silent process counts as hanging.
const PAUSE: Duration = Duration::from_secs(22);
/// The launcher's exit status after a process hung.
const HANG: i32 = 17;

/// A server whose steps take some time, so that streams outlast a pause.
fn slow() -> ServerBuilder {
    Server::mock().flag("--mock-step-us", 20_000)
}

fn stream(client: &Client) -> SseStream {
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 400}});
    let mut stream = client.stream("/generate_stream", &body).expect("a stream");
    assert!(stream.next().expect("a first event").get("token").is_some());
    stream
}

/// Waits for the end of a server with a process that hangs, and returns its error.
fn hung(server: Server) -> String {
    let pids = server.descendants();
    let finished = server.wait();
    let error = last_error(&finished.log);
    assert_eq!(finished.status.code(), Some(HANG), "{error}");
    assert!(finished.took < HANG_DEADLINE, "{:?}: {error}", finished.took);
    wait_until_gone(&pids);
    error
}

#[test]
fn a_shard_that_hangs_while_nobody_asks_ends_the_server_and_is_not_ready_before() {
    let server = slow().start();
    let client = server.client();
    assert_eq!(client.get("/ready").status, 200);
    send_signal(server.child("shard"), Signal::STOP);
    until_within(HANG_DEADLINE, "a server that is not ready", || {
        client.try_get("/ready").is_ok_and(|page| page.status == 503)
    });
    let error = hung(server);
    assert!(error.contains("shard 0 gave no sign of life for 10 s"), "{error}");
    assert!(error.contains("shard-0 was stopped by a signal such as SIGSTOP"), "{error}");
}

#[test]
fn a_router_that_hangs_ends_the_server_in_each_phase() {
    // While it waits for the warm-up of the shards.
    let starting = Server::mock().flag("--mock-step-us", 5_000_000).spawn();
    until_within(HANG_DEADLINE, "the router", || !starting.children("router").is_empty());
    let (idle, decoding) = (slow().start(), slow().start());
    let mut stream = stream(&decoding.client());
    let servers = [starting, idle, decoding];
    servers.iter().for_each(|server| send_signal(server.child("router"), Signal::STOP));
    for server in servers {
        let error = hung(server);
        assert!(error.contains("router gave no sign of life for 10 s"), "{error}");
        assert!(error.contains("router was stopped by a signal such as SIGSTOP"), "{error}");
    }
    // The connection ends with the router, which tells its clients nothing.
    assert!(stream.all(|event| event["generated_text"].is_null()));
}

#[test]
fn a_process_that_hangs_while_the_server_stops_is_not_awaited() {
    let cases =
        [("router", "router gave no sign of life for 10 s"), ("shard", "shard 0 gave no sign of life for 10 s")];
    let servers = cases.map(|(child, _)| {
        let server = slow().start();
        let client = server.client();
        let stream = stream(&client);
        server.signal(Signal::TERM);
        until_within(HANG_DEADLINE, "the drain", || client.try_get("/health").is_ok_and(|page| page.status == 503));
        send_signal(server.child(child), Signal::STOP);
        (server, stream)
    });
    for ((server, stream), (child, expected)) in servers.into_iter().zip(cases) {
        let error = hung(server);
        assert!(error.contains(expected), "{error}");
        let told = stream.filter(|event| event.get("error").is_some()).count();
        assert_eq!(told, usize::from(child == "shard"), "only the router can tell clients");
    }
}

#[test]
fn a_launcher_that_is_stopped_does_not_stop_its_server() {
    let server = slow().start();
    let stream = stream(&server.client());
    server.signal(Signal::STOP);
    pause(PAUSE);
    assert!(!server.client().generate("Once", 2).is_empty());
    assert!(terminal_event(stream)["generated_text"].is_string());
    server.signal(Signal::CONT);
    assert!(!server.client().generate("Once", 2).is_empty());
    assert_eq!(server.stop().status.code(), Some(0));
}

/// Freezes all processes of these servers for a while. The launchers go first and last, like a container.
fn freeze(servers: &[&Server]) {
    let pids: Vec<i32> =
        servers.iter().flat_map(|server| [vec![server.pid() as i32], server.descendants()].concat()).collect();
    pids.iter().for_each(|pid| send_signal(*pid, Signal::STOP));
    pause(PAUSE);
    pids.iter().rev().for_each(|pid| send_signal(*pid, Signal::CONT));
}

#[test]
fn a_pause_of_all_processes_loses_nothing() {
    let starting = Server::mock().flag("--mock-step-us", 3_000_000).spawn();
    until_within(HANG_DEADLINE, "the shard", || !starting.children("shard").is_empty());
    let (idle, decoding) = (slow().start(), slow().start());
    let ranks = Server::builder("demo", "cpu").flag("--num-shard", 2).start();
    let body = json!({"inputs": "Once upon a time", "parameters": {
        "max_new_tokens": 900, "do_sample": true, "temperature": 3.0, "seed": 7
    }});
    let mut streams = vec![stream(&decoding.client()), ranks.client().stream("/generate_stream", &body).unwrap()];
    assert!(streams[1].next().is_some());
    freeze(&[&starting, &idle, &decoding, &ranks]);
    for end in streams.into_iter().map(terminal_event).collect::<Vec<Value>>() {
        assert!(end["generated_text"].is_string(), "{end}");
    }
    assert!(!idle.client().generate("Once", 2).is_empty());
    assert!(!ranks.client().generate("Once", 2).is_empty());
    for server in [starting, idle, decoding, ranks] {
        let finished = server.stop();
        assert_eq!(finished.status.code(), Some(0), "{:?}", finished.log);
    }
}
