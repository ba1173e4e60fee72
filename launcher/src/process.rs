//! One child process: starts it, shows its log lines, reports its end to the supervisor, and sends it signals.
//!
//! A child is reaped only by [`Process::reap`], on the supervisor's thread, after its end was reported. So a signal
//! never reaches an unrelated process that was given the same process id.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::child_logs::ChildLogs;
use crate::error::LauncherError;
use crate::event::{ChildId, Event};
use crate::exit::Exit;
use crate::plan::ChildPlan;
use crate::variables::without_secrets;

/// The maximum length of a log line that is shown whole, in bytes. The lines of our own processes are shorter.
const MAX_LINE_BYTES: usize = 256 << 10;
/// The number of bytes that are shown of a longer line.
const CUT_LINE_BYTES: usize = 16 << 10;
/// The maximum time, after a child has ended, to wait until its last output has been read.
const LAST_LINES_DEADLINE: Duration = Duration::from_secs(1);

/// A child that runs, or that has ended and has not been reaped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pid: Pid,
}

impl Process {
    /// Starts `executable` with the planned arguments and `extra` ones. The child has its own process group, so that
    /// Ctrl-C on the terminal reaches only the launcher. Its log lines go to `logs`. Its end is sent as an event after
    /// its last line was shown, or after a deadline.
    ///
    /// This must be called from the launcher's main thread, because children ask the kernel to kill them when the
    /// thread that started them ends.
    ///
    /// # Errors
    /// [`LauncherError::Spawn`] when the child cannot be started.
    pub(crate) fn spawn(
        executable: &Path,
        plan: &ChildPlan,
        extra: &[String],
        logs: &Arc<ChildLogs>,
        events: SyncSender<Event>,
    ) -> Result<Self, LauncherError> {
        let failed = |source| LauncherError::Spawn { name: plan.id.to_string(), source };
        let ours = plan.variables.iter().filter(|variable| !variable.is_yours);
        let mut child = without_secrets(executable)
            .args(&plan.argv)
            .arg(format!("--parent-pid={}", std::process::id()))
            .args(extra)
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
        let (open_tx, open) = std::sync::mpsc::sync_channel(1);
        forward(stdout, id, Arc::clone(logs), open_tx.clone());
        forward(stderr, id, Arc::clone(logs), open_tx);
        std::thread::spawn(move || {
            let exit = wait_without_reaping(pid);
            // The receiver is disconnected when both pipes have been read to their end. A process that the child left
            // behind may keep the pipes open, so the wait has a deadline.
            let _: Result<(), RecvTimeoutError> = open.recv_timeout(LAST_LINES_DEADLINE);
            let _ = events.send(Event::Exited(id, exit));
        });
        Ok(Self { child, pid })
    }

    /// Sends a signal to the child. A signal to a child that has ended has no effect.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Err(error) = rustix::process::kill_process(self.pid, signal) {
            tracing::debug!("signal {signal:?} cannot be sent to process {}: {error}", self.pid.as_raw_nonzero());
        }
    }

    /// True if the child is stopped by a signal such as SIGSTOP, or by a debugger.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).unwrap_or_default();
        // The state follows the name in parentheses, which may contain anything (`proc_pid_stat(5)`).
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
    }

    /// Frees the process id of a child whose end was reported.
    pub(crate) fn reap(mut self) {
        if let Err(error) = self.child.wait() {
            tracing::debug!("the exit status of process {} cannot be read: {error}", self.pid.as_raw_nonzero());
        }
    }
}

/// Reads lines on a new thread and shows them in the logs. The thread drops `_open` at the end of the stream.
fn forward(source: impl Read + Send + 'static, id: ChildId, logs: Arc<ChildLogs>, _open: SyncSender<()>) {
    std::thread::spawn(move || {
        let _open = _open;
        let mut source = BufReader::new(source);
        while let Ok(Some(line)) = read_line(&mut source) {
            if !line.is_empty() {
                logs.show(id, &line);
            }
        }
    });
}

/// Returns the next line, or `None` at the end of the stream. A line of more than [`MAX_LINE_BYTES`] is cut, and a mark
/// in it says so.
pub(crate) fn read_line(source: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let mut num_bytes = 0;
    let mut is_complete = false;
    while !is_complete {
        let bytes = match source.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if bytes.is_empty() {
            break;
        }
        let end = bytes.iter().position(|byte| *byte == b'\n').map(|index| index + 1);
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        line.extend_from_slice(&piece[..piece.len().min(MAX_LINE_BYTES - line.len())]);
        num_bytes += piece.len();
        is_complete = end.is_some();
        let num_read = piece.len();
        source.consume(num_read);
    }
    if num_bytes == 0 {
        return Ok(None);
    }
    if num_bytes > line.len() {
        // A line that was cut is not valid JSON and is shown as it is, so it is shortened further.
        line.truncate(CUT_LINE_BYTES);
        let mark = telemetry::cut_mark(num_bytes - line.len());
        return Ok(Some(String::from_utf8_lossy(&line).into_owned() + &mark));
    }
    Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()))
}

/// Waits until the child has ended, and returns how. The child must still be reaped.
pub(crate) fn wait_without_reaping(pid: Pid) -> Exit {
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
            // This would mean that other code had reaped the child, and no other code does.
            Err(_) => return Exit::Status(-1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(mut text: &[u8]) -> Vec<String> {
        std::iter::from_fn(|| read_line(&mut text).unwrap()).collect()
    }

    #[test]
    fn lines_end_where_they_end() {
        assert_eq!(lines(b"a\n\n b \r\nc"), ["a", "", " b", "c"]);
        assert_eq!(lines(b""), [""; 0]);
        assert_eq!(lines(b"\xff\n"), ["\u{fffd}"]);
    }

    #[test]
    fn a_line_that_is_too_long_is_one_line_with_a_mark() {
        let longest = "x".repeat(MAX_LINE_BYTES - 1);
        assert_eq!(lines(format!("{longest}\nnext\n").as_bytes()), [longest.as_str(), "next"]);
        let long = "x".repeat(3 * MAX_LINE_BYTES);
        let kept = &long[..CUT_LINE_BYTES];
        let mark = telemetry::cut_mark(long.len() + 1 - CUT_LINE_BYTES);
        assert_eq!(lines(format!("{long}\nnext\n").as_bytes()), [format!("{kept}{mark}"), "next".to_owned()]);
    }
}
