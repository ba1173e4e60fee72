//! Tests of `--threads`: the shard has the requested number of compute threads, and a number above what the process may
//! use is refused.

use std::fs;

use integration_tests::Server;

fn num_compute_threads(server: &Server) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.child("shard"))).expect("the shard runs");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("compute-")).count()
}

#[test]
fn one_thread_computes() {
    let server = Server::builder("demo", "cpu").flag("--threads", "1").start();
    assert_eq!(num_compute_threads(&server), 1);
    assert_eq!(server.client().generate("<|user|>What is 3 + 4?<|assistant|>", 20), "3 + 4 is 7.");
}

#[test]
fn more_than_there_are_is_refused_in_words() {
    let finished = Server::builder("demo", "cpu").flag("--threads", "4096").spawn().wait();
    assert_eq!(finished.status.code(), Some(2), "{finished:?}");
    let log = finished.log.join("\n");
    assert!(log.contains("--threads is 4096, but this process may use at most"), "{log}");
}
