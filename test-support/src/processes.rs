//! Waits for child processes. A process that does not end in time is killed, and its program is named.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use crate::waits::{comes_within, join};

/// The maximum time of a child process. The slowest ones compile programs or start servers.
const DEADLINE: Duration = Duration::from_secs(600);

/// Waits until a child process has ended.
///
/// # Panics
///
/// When it has not ended in time. It is killed.
#[track_caller]
pub fn exit_status(child: &mut Child, awaited: &str) -> ExitStatus {
    exit_status_within(DEADLINE, child, awaited)
}

#[track_caller]
fn exit_status_within(deadline: Duration, child: &mut Child, awaited: &str) -> ExitStatus {
    let mut status = None;
    let ends = comes_within(deadline, || {
        status = child.try_wait().expect("the child was not waited for");
        status.is_some()
    });
    if !ends {
        let _ = child.kill();
        let _ = child.wait();
        panic!("waited {deadline:?} for the end of {awaited}");
    }
    status.expect("the wait ends with a status")
}

/// Runs a command to its end and returns what it wrote to stdout and stderr, with a deadline. The command's own
/// settings for stdin, stdout and stderr are replaced.
///
/// # Panics
///
/// When the command cannot be started, or has not ended in time. It is killed.
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    let name = format!("{command:?}");
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
    let (mut stdout, mut stderr) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let stdout = std::thread::spawn(move || read(&mut stdout));
    let stderr = std::thread::spawn(move || read(&mut stderr));
    let status = exit_status(&mut child, &name);
    let [stdout, stderr] = [stdout, stderr].map(|pipe| join(pipe, "the end of a pipe whose process has ended"));
    Output { status, stdout, stderr }
}

fn read(pipe: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).expect("a pipe can be read");
    bytes
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn the_output_of_a_command_is_returned() {
        let output = output(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]));
        assert_eq!(
            (output.status.code(), &output.stdout[..], &output.stderr[..]),
            (Some(3), &b"one\n"[..], &b"two\n"[..])
        );
    }

    #[test]
    fn a_child_that_does_not_end_is_killed_and_named() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let wait = || exit_status_within(Duration::from_millis(1), &mut child, "cat");
        let panic = catch_unwind(AssertUnwindSafe(wait)).expect_err("cat waits for its input");
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "waited 1ms for the end of cat");
        assert!(child.try_wait().unwrap().is_some_and(|status| !status.success()));
    }
}
