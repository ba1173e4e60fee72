//! Tests of start and stop: addresses, sockets, signals.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};

use integration_tests::{Server, executable, send_signal};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::until;

#[test]
fn a_term_signal_lets_running_generations_finish() {
    let server = Server::demo().start();
    let client = server.client();
    let pids = server.descendants();
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 900, "do_sample": true, "temperature": 3.0, "seed": 7}});
    let mut streams: Vec<_> = (0..10).map(|_| client.stream("/generate_stream", &body).unwrap()).collect();
    for stream in &mut streams {
        assert!(stream.next().is_some());
    }
    server.signal(Signal::TERM);
    for stream in streams {
        let last = stream.last().unwrap();
        assert!(last["generated_text"].is_string(), "{last}");
    }
    let directory = server.directory().to_path_buf();
    let finished = server.wait();
    assert_eq!(finished.status.code(), Some(0), "{:#?}", finished.log);
    assert!(!directory.join("shard-0").exists(), "the socket file is left behind");
    for pid in pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is left behind");
    }
}

#[test]
fn generations_that_take_too_long_are_told_so() {
    let server = Server::demo().flag("--shutdown-timeout", 0).start();
    let body = json!({"inputs": "Once", "parameters": {"max_new_tokens": 900, "do_sample": true, "temperature": 3.0, "seed": 7}});
    let mut stream = server.client().stream("/generate_stream", &body).unwrap();
    assert!(stream.next().is_some());
    // While the shard is stopped, the generation cannot finish.
    let shard = server.child("shard");
    send_signal(shard, Signal::STOP);
    server.signal(Signal::INT);
    let errors: Vec<Value> = stream.filter(|event| event.get("error").is_some()).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    send_signal(shard, Signal::CONT);
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn a_signal_while_loading_stops_cleanly() {
    let server = Server::mock().spawn();
    server.wait_first_line();
    server.signal(Signal::TERM);
    let finished = server.wait();
    assert!(matches!(finished.status.code(), Some(0)), "{finished:?}");
}

#[test]
fn a_taken_port_is_found_before_the_model_is_loaded() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let finished = Server::mock().flag("--hostname", "127.0.0.1").flag("--port", port).spawn().wait();
    assert_eq!(finished.status.code(), Some(2), "{finished:?}");
    assert!(finished.log.join("\n").contains(&format!("127.0.0.1:{port}")), "{:?}", finished.log);
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let socket = directory.path().join("s-0");
    drop(UnixListener::bind(&socket).unwrap());
    let server = Server::mock().flag("--shard-uds-path", path.display()).start();

    let second = Server::mock().flag("--shard-uds-path", path.display()).spawn().wait();
    assert_eq!(second.status.code(), Some(2));
    let expected = format!("`shard_uds_path` {} is in use by another launch", path.display());
    assert!(second.log.join("\n").contains(&expected), "{:?}", second.log);

    assert_eq!(server.client().get("/health").status, 200);
    assert_eq!(server.stop().status.code(), Some(0));
}

#[test]
fn a_socket_path_that_is_a_file_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("s-0");
    std::fs::write(&file, "mine").unwrap();
    let finished = Server::mock().flag("--shard-uds-path", directory.path().join("s").display()).spawn().wait();
    assert_eq!(finished.status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn a_signal_during_the_first_checks_of_a_launch_is_a_stop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let server = Server::mock().flag("--api-key-file", path.display()).spawn();
    let mut pipe = None;
    until("the launcher reads the keys", || {
        // This fails while nobody reads.
        pipe = rustix::fs::open(&path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).ok().map(File::from);
        pipe.is_some()
    });
    server.signal(Signal::TERM);
    // Later the file is read again.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "sesame\n").unwrap();
    pipe.take().unwrap().write_all(b"sesame\n").unwrap();
    let finished = server.wait();
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
}

#[test]
fn a_server_that_is_open_to_other_machines_says_so() {
    for (flag, value, is_open) in
        [("--hostname", "0.0.0.0", true), ("--hostname", "127.0.0.1", false), ("--api-key", "sesame", false)]
    {
        let finished = Server::mock().flag(flag, value).start().stop();
        let is_said = finished.log.iter().any(|line| line.contains("WARN") && line.contains("no API key is set"));
        assert_eq!(is_said, is_open, "{flag} {value}: {:#?}", finished.log);
    }
}

/// A launcher that is killed when the test ends.
struct Launcher(Child);

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_launch_without_a_slice_raises_its_limit_of_open_files_too() {
    let mut command = Command::new("sh");
    command.args(["-c", r#"ulimit -Sn 200 && exec "$0" "$@""#]).arg(executable());
    command.args(["--device", "mock", "--hostname", "127.0.0.1", "--port", "0"]);
    let launcher = Launcher(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let [limits, program] = ["limits", "exe"].map(|name| format!("/proc/{}/{name}", launcher.0.id()));
    until("the soft limit is the hard limit", || {
        // The shell lowers the limit before it becomes the launcher.
        let has_started = fs::read_link(&program).is_ok_and(|program| program == executable().canonicalize().unwrap());
        let limits = fs::read_to_string(&limits).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let words: Vec<&str> = line.split_whitespace().skip(3).collect();
        has_started && words[0] == words[1]
    });
}

#[test]
fn bad_arguments_exit_with_2_and_say_why() {
    let long = format!("/tmp/{}", "x".repeat(120));
    for (flag, value, sentence) in [
        ("--shard-uds-path", long.as_str(), "a Unix socket allows 107"),
        ("--model-id", "gpt2", "organisation/name of a model on the Hugging Face Hub"),
        ("--model-id", "/no/such/model", "/no/such/model"),
        ("--num-shard", "0", "`num_shard` is 0, but must be at least 1"),
    ] {
        let server = if flag == "--model-id" { Server::model(value) } else { Server::mock().flag(flag, value) };
        let finished = server.spawn().wait();
        assert_eq!(finished.status.code(), Some(2), "{flag} {value}: {finished:?}");
        assert!(finished.log.join("\n").contains(sentence), "{flag} {value}: {:?}", finished.log);
    }
}

#[test]
fn the_environment_sets_what_flags_do_not() {
    let server = Server::mock()
        .env("MAX_TOTAL_TOKENS", 200)
        .env("HOSTNAME", "container-1234")
        .flag("--max-input-tokens", 100)
        .start();
    let info = server.client().get("/info").json();
    assert_eq!((&info["max_total_tokens"], &info["max_input_tokens"]), (&json!(200), &json!(100)));
    assert_eq!(info["model_id"], "demo");
}
