//! Logging for every process: the format that the children write and the launcher reads.
//!
//! [`init`] starts logging in a process, [`fatal`] logs why the process ends, [`progress`] reports finished work, and
//! [`LogLine::parse`] reads a line back. Lines go to stdout: text for people, or one JSON object per line. A thread
//! that logs never waits for the log's reader (`output`). The crate does not decide what to log.

mod escape;
mod layer;
mod level;
mod line;
mod output;

use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::OnceLock;
use std::time::Duration;

use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;

pub use escape::cut_mark;
pub use level::LogLevelError;
pub use line::{LogLine, Progress};

use layer::LogLayer;
use line::{FATAL_TARGET, PROGRESS_TARGET};
use output::{Format, Output};

/// The time that the log's reader gets, at the end of a process, for the rest of the log.
const FLUSH_DEADLINE: Duration = Duration::from_secs(1);
/// The time that a panic waits until its line is written. It may be followed by an abort.
const PANIC_DEADLINE: Duration = Duration::from_millis(100);

static LOG: OnceLock<Log> = OnceLock::new();

/// The log of this process.
#[derive(Debug)]
struct Log {
    stdout: Output,
    json_output: bool,
}

/// The reason why a process cannot log.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The level is invalid.
    #[error(transparent)]
    Level(#[from] LogLevelError),
    /// The thread that writes cannot be started.
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
        // The filter is ignored: nothing else reports the panic.
        show(&LogLine::now(Level::ERROR, "panic", format!("panicked: {panic}")));
        if let Some(log) = LOG.get() {
            log.stdout.flush(PANIC_DEADLINE);
        }
    }));
    Ok(())
}

/// True if the stream is a terminal that can redraw lines, and NO_COLOR is not set.
pub fn has_colours(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    can_redraw(stream) && !is_set("NO_COLOR")
}

/// True if lines on this stream can be redrawn.
pub fn can_redraw(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Queues a line for stdout, in the format of [`init`] and without its filter.
pub fn show(line: &LogLine) {
    if let Some(log) = LOG.get() {
        log.stdout.push_line(line);
    }
}

/// Queues text for stdout as it is.
pub fn print(text: String) {
    if let Some(log) = LOG.get() {
        log.stdout.push(text);
    }
}

/// Waits until the queue is written, at most one second. Returns true if everything was written.
pub fn flush() -> bool {
    LOG.get().is_some_and(|log| log.stdout.flush(FLUSH_DEADLINE))
}

/// Logs why this process ends. The line also goes to stderr if the log's filter drops it, if it could not be written,
/// or if stdout is not seen.
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

/// True if stdout may be seen: it is not /dev/null, and it is a terminal unless stderr is not one either.
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
