//! How every process logs: the format in which the children write and which the launcher reads.
//!
//! [`init`] starts logging in a process, [`fatal`] says why the process ends, [`progress`] reports a piece of work
//! done, [`LogLine::parse`] reads a line back. Lines go to stdout: text for people, or one JSON object per line. Nobody
//! who logs ever waits for whoever reads (`output`). It never decides what to log.

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
use output::{Format, Output};

/// Target of the events that [`progress`] emits.
const PROGRESS_TARGET: &str = "progress";
/// Target of the event that [`fatal`] emits.
const FATAL_TARGET: &str = "fatal";
/// At the end of a process, the reader of the log gets this long to take what is left.
const FLUSH_DEADLINE: Duration = Duration::from_secs(1);
/// A panic may be followed by an abort; it waits this long for its line to be written.
const PANIC_DEADLINE: Duration = Duration::from_millis(100);

static LOG: OnceLock<Log> = OnceLock::new();

/// Where this process logs.
#[derive(Debug)]
struct Log {
    stdout: Output,
    json_output: bool,
}

/// Why a process cannot log.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The level cannot be understood.
    #[error(transparent)]
    Level(#[from] LogLevelError),
    /// The thread that writes cannot be started.
    #[error("start the thread that writes the log: {0}")]
    Thread(io::Error),
}

/// Starts logging to stdout, and logs panics as errors. Call once, first thing in a process, and [`flush`] last.
///
/// # Errors
/// When `level` is neither a level nor a filter in the syntax of `tracing_subscriber::EnvFilter`, or there is no
/// thread.
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
        // Whatever the filter: nobody else says why.
        show(&LogLine::now(Level::ERROR, "panic", format!("panicked: {panic}")));
        if let Some(log) = LOG.get() {
            log.stdout.flush(PANIC_DEADLINE);
        }
    }));
    Ok(())
}

/// Whether this stream is a terminal that shows colours and lines that are drawn over.
pub fn has_colours(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    can_redraw(stream) && !is_set("NO_COLOR")
}

/// Whether a line on this stream can be drawn over.
pub fn can_redraw(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Puts a line in the queue of stdout, whatever the filter says, in the format that [`init`] was told.
pub fn show(line: &LogLine) {
    if let Some(log) = LOG.get() {
        log.stdout.push_line(line);
    }
}

/// Puts text in the queue of stdout as it is.
pub fn print(text: String) {
    if let Some(log) = LOG.get() {
        log.stdout.push(text);
    }
}

/// Waits until everything in the queue is written, or a second has passed. Returns whether it was all written.
pub fn flush() -> bool {
    LOG.get().is_some_and(|log| log.stdout.flush(FLUSH_DEADLINE))
}

/// Logs why this process ends. Where the log does not show it, because of its filter or because nobody gets what is
/// written there, the line goes to stderr.
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

/// Whether somebody may read what is written to stdout: it is not thrown away, and nobody sits before a terminal that
/// shows nothing but stderr.
fn stdout_is_seen() -> bool {
    let stdout = std::fs::metadata("/proc/self/fd/1");
    let null = std::fs::metadata("/dev/null");
    let is_null = match (stdout, null) {
        (Ok(stdout), Ok(null)) => stdout.file_type().is_char_device() && stdout.rdev() == null.rdev(),
        _ => false,
    };
    !is_null && (io::stdout().is_terminal() || !io::stderr().is_terminal())
}

/// Reports that `done` of `total` pieces of `phase` are finished. The launcher shows it as a progress line.
pub fn progress(phase: &str, done: u64, total: u64) {
    tracing::info!(target: PROGRESS_TARGET, phase, done, total, "{phase} {done}/{total}");
}
