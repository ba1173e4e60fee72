//! Checks that waits in test code have a deadline.

use crate::tree::{SourceFile, all_rust_files};

/// Calls that wait without a deadline, each with the function to use instead. Most are in the crate `test-support`;
/// async code uses `until` and `within` of `fake-shard/src/waits.rs`.
const BARE_WAITS: [(&str, &str); 9] = [
    (".recv()", "receive"),
    (".join()", "join or join_scoped"),
    (".accept()", "accept"),
    ("Barrier::new(", "Meeting"),
    (".wait_while(", "wait_timeout_while of the standard library"),
    ("yield_now()", "until"),
    (".output()", "output"),
    ("child.wait()", "exit_status"),
    (".wait_with_output()", "output"),
];

/// Test code that may wait so, with the reason.
const MAY_WAIT: [(&str, &str, &str); 15] = [
    ("bench/src/tests.rs", ".accept()", "a task of the fake server, which ends with the test"),
    ("bench/src/tests.rs", "Barrier::new(", "`report` has a deadline for the whole load"),
    ("collectives/src/tests/turns.rs", "yield_now()", "one yield, without a condition"),
    ("cpu/src/threads.rs", "yield_now()", "takes one task of the thread pool"),
    ("endpoint/src/listener.rs", ".accept()", "the client is connected already"),
    ("integration-tests/src/hub.rs", ".wait_while(", "a thread of the fake Hub; its clients have deadlines"),
    ("integration-tests/src/server.rs", "child.wait()", "the server has ended or was killed"),
    ("integration-tests/src/server.rs", "yield_now()", "the loop has a deadline and shows the log"),
    ("integration-tests/tests/attacks/streams.rs", ".join()", "counts the panics of threads whose requests time out"),
    ("integration-tests/tests/it/links.rs", ".output()", "`ip` may be missing, and does not wait"),
    ("integration-tests/tests/it/plugins.rs", ".output()", "`python3` may be missing, and does not wait"),
    ("router/src/memory.rs", "yield_now()", "one yield, without a condition"),
    ("router/src/routes/tests/", "yield_now()", "passes one second, after which the loop ends"),
    ("shard-client/src/tests.rs", ".accept()", "a task that sends garbage, which ends with the test"),
    ("xla/src/tests/uploads.rs", "yield_now()", "gives other threads time, for a number of rounds"),
];

/// The files that implement waits with a deadline, and this one.
const IMPLEMENTATIONS: [&str; 3] = ["test-support/src/", "fake-shard/src/waits.rs", "tests/tidy/waits.rs"];

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn is_in(file: &SourceFile, path: &str) -> bool {
    file.path.to_string_lossy().contains(path)
}

#[test]
fn waits_of_tests_have_deadlines() {
    let mut found = Vec::new();
    for file in all_rust_files().iter().filter(|file| !IMPLEMENTATIONS.iter().any(|path| is_in(file, path))) {
        for (number, line) in file.test_lines().filter(|(_, line)| !is_comment(line) && !line.contains("within(")) {
            for (call, better) in BARE_WAITS {
                let is_allowed = MAY_WAIT.iter().any(|(path, allowed, _)| *allowed == call && is_in(file, path));
                if line.contains(call) && !is_allowed {
                    found.push(format!("{}:{number}: {call} has no deadline; use {better}", file.path.display()));
                }
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn every_excuse_for_a_wait_is_needed() {
    let files = all_rust_files();
    for (path, call, _) in MAY_WAIT {
        let mut lines = files.iter().filter(|file| is_in(file, path)).flat_map(SourceFile::test_lines);
        assert!(lines.any(|(_, line)| line.contains(call)), "{path} has no {call} any more");
    }
}
