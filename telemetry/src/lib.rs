//! How every process logs: the format in which the children write and which the launcher reads.
//!
//! [`init`] starts logging in a process, [`progress`] reports a piece of work done, [`LogLine::parse`] reads a line
//! back. Lines go to stdout: text for people, or one JSON object per line. It never decides what to log.

use std::io::IsTerminal;

use serde::Deserialize;
use serde_json::{Map, Value};
use tracing_subscriber::EnvFilter;

/// Target of the events that [`progress`] emits.
const PROGRESS_TARGET: &str = "progress";

/// The log level filter cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("log level {level:?} is not error, warn, info, debug, trace, or a filter such as \"info,router=debug\"")]
pub struct LogLevelError {
    level: String,
    source: tracing_subscriber::filter::ParseError,
}

/// Starts logging to stdout, and logs panics as errors. Call once, first thing in a process.
///
/// # Errors
/// When `level` is neither a level nor a filter in the syntax of `tracing_subscriber::EnvFilter`.
pub fn init(json_output: bool, level: &str) -> Result<(), LogLevelError> {
    let filter = EnvFilter::try_new(level).map_err(|source| LogLevelError { level: level.into(), source })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    // A second call (tests in one process) keeps the first subscriber.
    let _ = if json_output {
        builder.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
    } else {
        let has_colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        builder.with_target(false).with_ansi(has_colours).try_init()
    };
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!("panicked: {panic}");
    }));
    Ok(())
}

/// Reports that `done` of `total` pieces of `phase` are finished. The launcher shows it as a progress line.
pub fn progress(phase: &str, done: u64, total: u64) {
    tracing::info!(target: PROGRESS_TARGET, phase, done, total, "{phase} {done}/{total}");
}

/// One line of a child's log.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LogLine {
    /// `ERROR`, `WARN`, `INFO`, `DEBUG` or `TRACE`.
    pub level: String,
    /// The sentence.
    #[serde(default)]
    pub message: String,
    /// The module that wrote it.
    #[serde(default)]
    pub target: String,
    /// RFC 3339, UTC.
    #[serde(default)]
    pub timestamp: String,
    /// Everything else.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// Work done so far in one phase of start-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is going on, such as `load weights`.
    pub phase: String,
    /// Pieces finished.
    pub done: u64,
    /// Pieces in all.
    pub total: u64,
}

impl LogLine {
    /// Reads a line written by a process that called [`init`] with `json_output`; `None` for any other line.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    /// The progress this line reports, if it is one that [`progress`] wrote.
    pub fn progress(&self) -> Option<Progress> {
        if self.target != PROGRESS_TARGET {
            return None;
        }
        let phase = self.fields.get("phase")?.as_str()?.to_owned();
        Some(Progress { phase, done: self.fields.get("done")?.as_u64()?, total: self.fields.get("total")?.as_u64()? })
    }

    /// The sentence followed by the other fields as `name=value`, for people.
    pub fn text(&self) -> String {
        let mut text = self.message.clone();
        for (name, value) in &self.fields {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.push_str(&format!(" {name}={value}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_line_is_read_back() {
        let line = r#"{"timestamp":"2026-01-01T00:00:00Z","level":"INFO","message":"ready","target":"router","port":80,"model":"demo"}"#;
        let line = LogLine::parse(line).unwrap();
        assert_eq!((line.level.as_str(), line.target.as_str()), ("INFO", "router"));
        assert_eq!(line.text(), "ready port=80 model=demo");
        assert_eq!(line.progress(), None);
    }

    #[test]
    fn progress_is_recognised_by_its_target() {
        let line = r#"{"level":"INFO","message":"","target":"progress","phase":"load weights","done":3,"total":9}"#;
        let progress = LogLine::parse(line).unwrap().progress();
        assert_eq!(progress, Some(Progress { phase: "load weights".into(), done: 3, total: 9 }));
    }

    #[test]
    fn other_text_is_not_a_line() {
        assert_eq!(LogLine::parse("thread panicked"), None);
        assert_eq!(LogLine::parse("[1, 2]"), None);
    }
}
