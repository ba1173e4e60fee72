//! Tests of the log. At every level, a reader that stops reading or goes away does not disturb the server, and the
//! reason of a failed start is logged exactly once.

use std::process::Command;

use integration_tests::{LogReader, Server, ServerBuilder, executable, send_signal};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::{output, until};

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Sends a signal during ten streams and checks that new requests are refused and that all ten streams finish.
fn check_shutdown(level: &str, reader: LogReader, signal: Signal) {
    let server = Server::mock().flag("--log-level", level).log_reader(reader).start_unseen();
    let client = server.client();
    let shard = server.child("shard");
    // While the shard is stopped, the streams stay open.
    send_signal(shard, Signal::STOP);
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 50}});
    let streams: Vec<_> = (0..10).map(|_| client.stream("/generate_stream", &body).expect("a stream")).collect();
    server.signal(signal);
    until("the drain", || client.get("/health").status == 503);
    send_signal(shard, Signal::CONT);
    for stream in streams {
        let last = stream.last().unwrap_or_default();
        assert!(last["generated_text"].is_string(), "{level}, {reader:?}, {signal:?}: {last}");
    }
    let finished = server.wait();
    assert_eq!(finished.status.code(), Some(0), "{level}, {reader:?}, {signal:?}: {:#?}", finished.log);
}

#[test]
fn streams_finish_after_a_term_signal_at_every_level() {
    LEVELS.into_iter().for_each(|level| check_shutdown(level, LogReader::Harness, Signal::TERM));
}

#[test]
fn streams_finish_after_a_term_signal_when_stdout_is_closed() {
    LEVELS.into_iter().for_each(|level| check_shutdown(level, LogReader::Closed, Signal::TERM));
}

#[test]
fn streams_finish_after_a_term_signal_when_nobody_reads_the_log() {
    LEVELS.into_iter().for_each(|level| check_shutdown(level, LogReader::Stopped, Signal::TERM));
}

#[test]
fn streams_finish_after_any_signal_when_the_reader_of_the_log_is_gone() {
    for level in LEVELS {
        check_shutdown(level, LogReader::Gone, Signal::TERM);
        check_shutdown(level, LogReader::Gone, Signal::INT);
    }
}

#[test]
fn a_log_that_nobody_reads_does_not_stop_requests() {
    // The requests below cause more log lines than pipes and queues hold.
    let server = Server::mock().flag("--log-level", "trace").log_reader(LogReader::Stopped).start_unseen();
    let client = server.client();
    let long = "x".repeat(8 << 10);
    for index in 0..300 {
        let request = ureq::post(client.url("/generate")).header("x-request-id", format!("{index}{long}"));
        assert_eq!(
            request.send_json(json!({"inputs": "a", "parameters": {"max_new_tokens": 1}})).unwrap().status(),
            200
        );
    }
    assert_eq!(client.get("/health").status, 200);
    assert_eq!(server.stop().status.code(), Some(0));
}

#[test]
fn a_person_at_a_terminal_sees_the_banner_at_every_level() {
    for level in ["error", "info"] {
        let server = Server::mock().text_log().flag("--log-level", level).log_reader(LogReader::Terminal);
        let log = server.start_unseen().stop().log.join("\n");
        assert!(log.contains("demo is ready at http://"), "{level}: {log}");
        assert_eq!(log.matches("30 s to finish, Ctrl-C again ends them at once").count(), 1, "{level}: {log}");
        assert_eq!(log.matches("30 s").count(), 1, "{level}: {log}");
    }
}

#[test]
fn a_dumb_terminal_gets_neither_colours_nor_bars() {
    for (term, has_escapes) in [("dumb", false), ("xterm", true)] {
        let server = Server::mock().text_log().env("TERM", term).log_reader(LogReader::Terminal);
        let log = server.start_unseen().stop().log.join("\n");
        assert_eq!(log.contains('\x1b'), has_escapes, "{term}: {log}");
    }
}

#[test]
fn clients_cannot_forge_lines_or_fields() {
    let forged = "x\n2026-01-01T00:00:00.000000Z ERROR router: forged=1\u{1b}[2J\u{85}\u{2028}";
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 1, "adapter_id": forged}});
    for is_json in [true, false] {
        let builder = Server::mock().flag("--log-level", "debug");
        let builder = if is_json { builder } else { builder.text_log() };
        let server = builder.start_unseen();
        let client = server.client();
        assert_eq!(client.post("/generate", &body).status, 422);
        let request = ureq::post(client.url("/generate")).header("x-request-id", "1 status=200 total_time=0");
        request.send_json(json!({"inputs": "a", "parameters": {"max_new_tokens": 1}})).unwrap();
        let log = server.stop().log;
        assert!(log.iter().any(|line| line.contains("forged")), "{log:#?}");
        assert!(
            !log.iter().any(|line| line.starts_with("2026-01-01") || line.contains(['\x1b', '\u{85}', '\u{2028}']))
        );
        if is_json {
            assert!(log.iter().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{log:#?}");
        } else {
            let quoted = "request_id=\"1 status=200 total_time=0\"";
            assert!(log.iter().any(|line| line.contains(quoted)), "{log:#?}");
        }
    }
}

#[test]
fn levels_are_known_by_their_names() {
    let server = Server::mock().flag("--log-level", "warning").start_unseen();
    assert_eq!(server.stop().status.code(), Some(0));
    let finished = Server::mock().flag("--log-level", "loud").log_reader(LogReader::HarnessOfBoth).spawn().wait();
    assert_eq!(finished.status.code(), Some(2));
    assert!(finished.log.join("\n").contains("log level \"loud\" is not error, warn, info"), "{:?}", finished.log);
}

/// Checks that the launch fails and that its reason is logged in exactly one line, whichever process finds it.
fn check_reason(builder: ServerBuilder, level: &str, reason: &str) {
    let builder = builder.text_log().flag("--log-level", level).log_reader(LogReader::HarnessOfBoth);
    let finished = builder.spawn().wait();
    assert_eq!(finished.status.code(), Some(2), "{level}: {:#?}", finished.log);
    let num_lines = finished.log.iter().filter(|line| line.contains(reason)).count();
    assert_eq!(num_lines, 1, "{level}: {:#?}", finished.log);
}

#[test]
fn the_reason_of_an_exit_is_told_once_whatever_the_filter() {
    for level in ["info", "error", "off", "launcher=info", "router=debug"] {
        check_reason(Server::model("/no/such/model"), level, "/no/such/model");
    }
    for level in ["info", "off", "launcher=info"] {
        check_reason(Server::builder("demo", "cpu").flag("--num-shard", 4), level, "--num-shard");
        // The launcher and the shard both check this limit.
        check_reason(Server::builder("demo", "cpu").flag("--max-total-tokens", 4_000_000), level, "4000000");
    }
}

#[test]
fn the_reason_of_an_exit_reaches_stderr_where_stdout_is_thrown_away() {
    let command = |redirection: &str| {
        let script = format!("exec \"$0\" --model-id /no/such/model --port 0 {redirection}");
        let output = output(Command::new("/bin/sh").args(["-c", &script]).arg(executable()));
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    for redirection in [">/dev/null", ">&-", "--log-level off", "--log-level off --json-output"] {
        assert!(command(redirection).contains("/no/such/model"), "{redirection}");
    }
}

#[test]
fn a_part_whose_launcher_is_gone_does_not_start() {
    for part in ["router", "shard"] {
        let mut command = Command::new(executable());
        command.arg(part);
        if part == "shard" {
            command.args(["--uds-path", "/no/such/place"]);
        }
        // The given parent is not the real one, which is this test, so the process must conclude that its launcher is
        // gone.
        let output = output(command.arg("--parent-pid=1"));
        assert_eq!(output.status.code(), Some(1), "{part}: {output:?}");
        let log = String::from_utf8(output.stdout).unwrap();
        assert!(log.contains("is gone"), "{part}: {log}");
    }
}

#[test]
fn the_longest_time_to_finish_is_no_trouble() {
    let server = Server::mock().flag("--shutdown-timeout", u64::MAX).start();
    let finished = server.stop();
    assert_eq!(finished.status.code(), Some(0), "{:#?}", finished.log);
}

#[test]
fn leftovers_of_a_killed_launcher_are_removed_by_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let start = || Server::mock().private_sockets().env("XDG_RUNTIME_DIR", directory.path().display()).start();
    let num_left = || std::fs::read_dir(directory.path()).unwrap().count();
    let (killed, living) = (start(), start());
    let pids = killed.descendants();
    killed.signal(Signal::KILL);
    crate::failures::wait_until_gone(&pids);
    drop(killed);
    assert_eq!(num_left(), 2);
    let next = start();
    assert_eq!(num_left(), 2, "one directory of the living launcher, one of the next");
    assert_eq!(next.stop().status.code(), Some(0));
    assert_eq!(living.stop().status.code(), Some(0));
    assert_eq!(num_left(), 0);
}
