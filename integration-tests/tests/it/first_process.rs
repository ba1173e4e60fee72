//! Tests of the executable as the first process of a PID namespace, as in a container. On a system that allows no new
//! namespaces, the tests print that they are skipped.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use integration_tests::{executable, send_signal};
use rustix::process::Signal;
use test_support::{exit_status, output, skipped, watched};

/// Returns the command `unshare`, which starts another command as the first process of new namespaces. Returns `None`
/// if this system does not allow it.
fn unshare() -> Option<Command> {
    let new = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]).stdin(Stdio::null());
        command
    };
    let works = new().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !works {
        skipped("no namespaces");
    }
    works.then(new)
}

#[test]
fn its_status_is_that_of_what_it_runs() {
    for (args, expected) in [(["--model-id", "/nowhere"], 2), (["plugin", "list"], 0)] {
        let Some(mut command) = unshare() else { return };
        let output = output(command.arg(executable()).args(args).env("PORT", "0"));
        assert_eq!(output.status.code(), Some(expected), "{output:?}");
    }
}

#[test]
fn a_term_signal_stops_the_server() {
    let Some(mut command) = unshare() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("http");
    command.arg(executable()).args(["--device", "mock", "--json-output", "--uds"]).arg(&socket);
    let mut unshare = command.env_remove("HOSTNAME").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(unshare.stdout.take().unwrap()).lines().map_while(Result::ok);
    let is_ready = watched("the ready line", || lines.any(|line| line.contains("\"ready\"")));
    assert!(is_ready, "it ended before it was ready");

    let children = format!("/proc/{0}/task/{0}/children", unshare.id());
    let first_process = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    send_signal(first_process, Signal::TERM);
    // This reads the rest of the log, which ends when the last process that can write to it exits.
    watched("the end of the log", || lines.for_each(drop));
    assert_eq!(exit_status(&mut unshare, "the first process").code(), Some(0));
    assert!(!socket.exists(), "the server did not stop in order");
}
