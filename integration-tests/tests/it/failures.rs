//! Tests in which a process dies: every stream ends with one error, the launcher reports the reason and exits with the
//! status of that failure, and no process is left behind.

use std::time::Duration;

use integration_tests::{Server, SseStream, is_plugin_there, send_signal};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::until_within;

/// The promised maximum time from the death of a process to the exit of the launcher.
const END_DEADLINE: Duration = Duration::from_secs(5);

fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) fn wait_until_gone(pids: &[i32]) {
    let are_gone = || !pids.iter().any(|pid| is_running(*pid));
    until_within(END_DEADLINE, &format!("the end of all processes of {pids:?}"), are_gone);
}

pub(crate) fn last_error(log: &[String]) -> String {
    let lines = log.iter().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut errors = lines.filter(|line| line["level"] == "ERROR" && line.get("process").is_none());
    let error = errors.next().expect("the launcher logs an error");
    error["message"].as_str().expect("log lines have a message").to_owned()
}

/// Returns the only event that ends a stream: an error, or the summary if the stream had finished before.
pub(crate) fn terminal_event(stream: SseStream) -> Value {
    let is_terminal = |event: &Value| event.get("error").is_some() || event["generated_text"].is_string();
    let mut ends: Vec<Value> = stream.filter(is_terminal).collect();
    assert_eq!(ends.len(), 1, "{ends:?}");
    ends.remove(0)
}

#[test]
fn a_killed_shard_ends_every_stream_with_one_error() {
    let server = Server::demo().start();
    let client = server.client();
    let pids = server.descendants();
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 900, "do_sample": true, "temperature": 3.0, "seed": 7}});
    let mut streams: Vec<_> = (0..20).map(|_| client.stream("/generate_stream", &body).unwrap()).collect();
    for stream in &mut streams {
        assert!(stream.next().unwrap().get("token").is_some());
    }
    let shard = server.child("shard");
    // The shard is stopped first, so that no more streams finish before it dies.
    send_signal(shard, Signal::STOP);
    send_signal(shard, Signal::KILL);
    let ends: Vec<Value> = streams.into_iter().map(terminal_event).collect();
    let errors: Vec<&Value> = ends.iter().filter(|end| end.get("error").is_some()).collect();
    assert!(!errors.is_empty(), "every stream had ended before the shard did");
    assert!(errors.iter().all(|error| error["error_type"] == "generation"), "{errors:?}");
    let finished = server.wait();
    assert_eq!(finished.status.code(), Some(17));
    assert!(finished.took < END_DEADLINE, "{:?}", finished.took);
    let error = last_error(&finished.log);
    assert!(error.contains("shard-0 was killed by signal 9"), "{error}");
    wait_until_gone(&pids);
}

#[test]
fn a_killed_router_ends_the_launch() {
    let server = Server::mock().start();
    let pids = server.descendants();
    send_signal(server.child("router"), Signal::KILL);
    let finished = server.wait();
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.took < END_DEADLINE, "{:?}", finished.took);
    assert!(last_error(&finished.log).contains("router was killed by signal 9"), "{:?}", finished.log);
    wait_until_gone(&pids);
}

#[test]
fn a_killed_launcher_takes_its_children_along() {
    let server = Server::mock().start();
    let pids = server.descendants();
    assert_eq!(pids.len(), 2);
    server.signal(Signal::KILL);
    wait_until_gone(&pids);
}

/// The checkpoint is legal, but the last norm makes its numbers infinite. A restart would not help, so the status is
/// that of a wrong configuration.
#[test]
fn a_model_whose_scores_are_not_finite_ends_the_start() {
    let directory = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(checkpoints::folder("tiny-llama-tied")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
    }
    // The last tensor of the file is the last norm, which has 48 floats.
    let path = directory.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let start = bytes.len() - 192;
    bytes[start..].copy_from_slice(&[f32::MAX.to_le_bytes(); 48].concat());
    std::fs::write(&path, bytes).unwrap();
    let xla = is_plugin_there("cpu").then_some("xla-cpu");
    for device in ["cpu"].into_iter().chain(xla) {
        let server = Server::builder(directory.path().to_str().unwrap(), device);
        let finished = server.flag("--max-batch-size", 2).flag("--max-total-tokens", 64).spawn().wait();
        assert_eq!(finished.status.code(), Some(2), "{device}: {:#?}", finished.log);
        let error = last_error(&finished.log);
        assert!(error.contains("the model's scores of the next token are NaN or infinite"), "{device}: {error}");
    }
}

#[test]
fn a_model_that_cannot_be_loaded_is_named() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("config.json"), r#"{"architectures":["MysteryForCausalLM"]}"#).unwrap();
    std::fs::write(directory.path().join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let finished = Server::model(directory.path().to_str().unwrap()).spawn().wait();
    assert_eq!(finished.status.code(), Some(2));
    let error = last_error(&finished.log);
    assert!(error.contains("MysteryForCausalLM") && error.contains("LlamaForCausalLM"), "{error}");
}
