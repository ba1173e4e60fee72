//! Logging for every process, in a format that the launcher's children write and the launcher reads.
//!
//! [`init`] starts logging in a process, [`fatal`] logs why the process ends, [`progress`] reports the progress of a
//! phase, and [`LogLine::parse`] parses a line. Lines go to stdout, either as text for people or as one JSON object per
//! line. A thread that logs does not wait for the reader of the log (`output`), except at a panic or in [`fatal`], and
//! then only for a limited time. [`print_result`] writes the result of a command, past the log. [`Throttle`] makes one
//! line of many events that strangers can cause.

mod escape;
mod layer;
mod level;
mod line;
mod output;
mod result;
mod throttle;

use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::OnceLock;
use std::time::Duration;

use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;

pub use escape::cut_mark;
pub use level::LogLevelError;
pub use line::{LogLine, Progress};
pub use result::print_result;
pub use throttle::Throttle;

use layer::LogLayer;
use line::{FATAL_TARGET, PROGRESS_TARGET};
use output::{Format, Output};

/// The maximum time that [`flush`] waits until the log is written.
const FLUSH_DEADLINE: Duration = Duration::from_secs(1);
/// The maximum time that a panic waits until its line is written. It waits at all because an abort may follow.
const PANIC_DEADLINE: Duration = Duration::from_millis(100);

static LOG: OnceLock<Log> = OnceLock::new();

/// The log of this process.
#[derive(Debug)]
struct Log {
    stdout: Output,
    json_output: bool,
}

/// The reason why a process cannot start to log.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The level is invalid.
    #[error(transparent)]
    Level(#[from] LogLevelError),
    /// The thread that writes the log cannot be started.
    #[error("the thread that writes the log cannot be started: {0}")]
    Thread(io::Error),
}

/// Starts logging to stdout, and logs panics as errors. Call it once at the start of a process, and [`flush`] at the
/// end.
///
/// # Errors
/// When `level` is neither a level nor a filter in the syntax of `tracing_subscriber::EnvFilter`, or no thread can be
/// started.
pub fn init(json_output: bool, level: &str) -> Result<(), InitError> {
    let filter = level::filter(level)?;
    // A second call (tests in one process) keeps the first output and the first subscriber.
    if LOG.get().is_none() {
        let stdout = Output::start(&io::stdout(), format(json_output, has_colours(&io::stdout())));
        let _ = LOG.set(Log { stdout: stdout.map_err(InitError::Thread)?, json_output });
    }
    let subscriber = tracing_subscriber::registry().with(filter).with(LogLayer::new(show));
    let _ = tracing::subscriber::set_global_default(subscriber);
    std::panic::set_hook(Box::new(|panic| {
        // The filter is not applied, because nothing else reports the panic.
        show(&LogLine::now(Level::ERROR, "panic", format!("panicked: {panic}")));
        if let Some(log) = LOG.get() {
            log.stdout.flush(PANIC_DEADLINE);
        }
    }));
    Ok(())
}

/// True if the stream is a terminal that can redraw lines, and the environment variable `NO_COLOR` is unset or empty.
pub fn has_colours(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    can_redraw(stream) && !is_set("NO_COLOR")
}

/// True if lines on this stream can be redrawn: it is a terminal, and not a dumb one.
pub fn can_redraw(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Queues a line for stdout, in the format that was passed to [`init`]. The log filter is not applied. A no-op before
/// [`init`].
pub fn show(line: &LogLine) {
    if let Some(log) = LOG.get() {
        log.stdout.push_line(line);
    }
}

/// Queues text for stdout, unchanged. A no-op before [`init`].
pub fn print(text: String) {
    if let Some(log) = LOG.get() {
        log.stdout.push(text);
    }
}

/// Waits until all queued lines are written, at most one second. Returns true if the queue is empty then and the last
/// write succeeded; false before [`init`].
pub fn flush() -> bool {
    LOG.get().is_some_and(|log| log.stdout.flush(FLUSH_DEADLINE))
}

/// Logs why this process ends. The line also goes to stderr if the log's filter drops it, if it cannot be written to
/// stdout, or if nobody sees stdout.
pub fn fatal(message: &str) {
    let line = LogLine::now(Level::ERROR, FATAL_TARGET, message.to_owned());
    let is_enabled = tracing::enabled!(target: FATAL_TARGET, Level::ERROR);
    if is_enabled {
        show(&line);
    }
    if !flush() || !is_enabled || !stdout_is_seen() {
        let json_output = LOG.get().is_some_and(|log| log.json_output);
        if let Ok(stderr) = Output::start(&io::stderr(), format(json_output, has_colours(&io::stderr()))) {
            stderr.push_line(&line);
            stderr.flush(FLUSH_DEADLINE);
        }
    }
}

fn format(json_output: bool, is_coloured: bool) -> Format {
    Box::new(move |line| if json_output { line.json() } else { line.for_people(None, is_coloured) })
}

/// True if somebody may see stdout. False if it is /dev/null, or if stderr is a terminal and stdout is not.
fn stdout_is_seen() -> bool {
    let stdout = std::fs::metadata("/proc/self/fd/1");
    let null = std::fs::metadata("/dev/null");
    let is_null = match (stdout, null) {
        (Ok(stdout), Ok(null)) => stdout.file_type().is_char_device() && stdout.rdev() == null.rdev(),
        _ => false,
    };
    !is_null && (io::stdout().is_terminal() || !io::stderr().is_terminal())
}

/// Reports that `done` of `total` items of `phase` are finished. The launcher shows this as a progress line.
pub fn progress(phase: &str, done: u64, total: u64) {
    tracing::info!(target: PROGRESS_TARGET, phase, done, total, "{phase} {done}/{total}");
}
