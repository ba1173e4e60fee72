//! One child process: spawn it, hand its lines and its end to the supervisor, signal it.
//!
//! A child is reaped only by [`Process::reap`], on the supervisor's thread, after its last line has been sent; so a
//! signal never reaches a stranger that was given the same process id.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::error::LauncherError;
use crate::event::{ChildId, Event};
use crate::plan::ChildPlan;
use crate::variables::without_secrets;

/// Bytes of one log line that are kept; the rest of an endless line is dropped.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// A running child, or one that has ended and was not reaped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pid: Pid,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Status(i32),
    Signal(i32),
}

impl Process {
    /// Starts `executable` with the planned arguments, in a process group of its own so that Ctrl-C on the terminal
    /// reaches only the launcher. Its lines and, last of all, its end arrive as events.
    ///
    /// Must be called from the launcher's main thread: children ask to die with the thread that made them.
    ///
    /// # Errors
    /// [`LauncherError::Spawn`].
    pub(crate) fn spawn(executable: &Path, plan: &ChildPlan, events: SyncSender<Event>) -> Result<Self, LauncherError> {
        let failed = |source| LauncherError::Spawn { name: plan.id.to_string(), source };
        let ours = plan.variables.iter().filter(|variable| !variable.is_yours);
        let mut child = without_secrets(executable)
            .args(&plan.argv)
            .envs(ours.map(|variable| (variable.name, &variable.value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let pid = Pid::from_child(&child);
        let id = plan.id;
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        let readers = [forward(stdout, id, events.clone()), forward(stderr, id, events.clone())];
        std::thread::spawn(move || {
            let exit = wait_without_reaping(pid);
            for reader in readers {
                let _ = reader.join();
            }
            let _ = events.send(Event::Exited(id, exit));
        });
        Ok(Self { child, pid })
    }

    /// Sends a signal; a child that has ended does not mind.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Err(error) = rustix::process::kill_process(self.pid, signal) {
            tracing::debug!("signal {signal:?} to process {}: {error}", self.pid.as_raw_nonzero());
        }
    }

    /// Whether a signal has stopped it, as SIGSTOP and debuggers do.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).unwrap_or_default();
        // The state follows the name in parentheses, which may contain anything (`proc_pid_stat(5)`).
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
    }

    /// Frees the process id of a child whose end was reported.
    pub(crate) fn reap(mut self) {
        if let Err(error) = self.child.wait() {
            tracing::debug!("reap process {}: {error}", self.pid.as_raw_nonzero());
        }
    }
}

fn forward(source: impl Read + Send + 'static, id: ChildId, events: SyncSender<Event>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut source = BufReader::new(source);
        let mut line = Vec::new();
        loop {
            line.clear();
            match source.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if !text.is_empty() && events.send(Event::Line(id, text)).is_err() {
                return;
            }
        }
    })
}

fn wait_without_reaping(pid: Pid) -> Exit {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match rustix::process::waitid(WaitId::Pid(pid), options) {
            Ok(Some(status)) => {
                return match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Exit::Status(code),
                    (None, signal) => Exit::Signal(signal.unwrap_or(0)),
                };
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            // Only possible when somebody else reaped the child, which nobody does.
            Err(_) => return Exit::Status(-1),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "exited with status {status}"),
            Self::Signal(9) => {
                f.write_str("was killed by signal 9 (SIGKILL; the system does that when memory runs out)")
            }
            Self::Signal(4) => f.write_str("was killed by signal 4 (SIGILL; this CPU lacks an instruction)"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}
