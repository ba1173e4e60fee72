//! Tests of start and stop: addresses, sockets, signals.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use integration_tests::{Server, send_signal};
use rustix::process::Signal;
use serde_json::{Value, json};

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
    assert_eq!(second.status.code(), Some(1));
    assert!(second.log.join("\n").contains("in use"), "{:?}", second.log);

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
