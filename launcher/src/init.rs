//! The first process of a container. It starts this executable again with the same arguments, passes signals on to it,
//! and reaps its child and every orphan that ends.
//!
//! The kernel treats the first process of a PID namespace specially. Signals that it does not handle have no effect on
//! it (except SIGKILL and SIGSTOP from outside), and every process whose parent has ended becomes its child and stays a
//! zombie until it is waited for. So launcher, router and shard never run as the first process; they run as its
//! children, as they would anywhere else.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// The signals that are passed on to the child. A container's runtime sends signals to the container's first process.
const PASSED_ON: [i32; 6] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
/// The exit status for a process that a signal ended is this plus the signal's number, as in shells.
const ENDED_BY_SIGNAL: i32 = 128;

/// True if this process is the first of its PID namespace.
pub(crate) fn is_first_process() -> bool {
    std::process::id() == 1
}

/// Runs this executable as a child and waits until it ends. Returns the child's exit status, or 128 plus the number of
/// the signal that ended it.
pub(crate) fn run() -> ExitCode {
    match start_and_wait() {
        Ok(status) => status,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "error: the launcher cannot be started in this container: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start_and_wait() -> io::Result<ExitCode> {
    // The handlers are installed before the child starts, so that no signal for the child is lost.
    let signals = Signals::new(PASSED_ON)?;
    // The child gets its own process group, so that Ctrl-C on a terminal reaches it only once, through this process.
    let child = Command::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).process_group(0).spawn()?;
    let pid = Pid::from_child(&child);
    std::thread::spawn(move || pass_on(signals, pid));
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended == pid => return Ok(exit_code(status)),
            // An orphan was reaped, or a signal interrupted the wait.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Passes signals on to the child. Never returns: its thread ends with the process, which exits right after the child
/// was reaped.
fn pass_on(mut signals: Signals, child: Pid) {
    for signal in signals.forever().filter_map(Signal::from_named_raw) {
        // The error is ignored, because the child may already have ended.
        let _ = kill_process(child, signal);
    }
}

fn exit_code(status: WaitStatus) -> ExitCode {
    let status = status.exit_status().or_else(|| Some(ENDED_BY_SIGNAL + status.terminating_signal()?));
    status.and_then(|status| u8::try_from(status).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
