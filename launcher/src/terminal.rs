//! What the launcher shows: the children's lines with a label, and progress. On a terminal progress is one line that
//! is drawn over; elsewhere it is a log line now and then.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use telemetry::{LogLine, Progress};

use crate::event::ChildId;

const BAR_CELLS: u64 = 24;
/// Between two progress lines in a log that is no terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Where everything is shown.
#[derive(Debug)]
pub(crate) struct Terminal {
    json_output: bool,
    is_interactive: bool,
    has_progress_line: bool,
    last_progress: Option<(Progress, Instant)>,
}

impl Terminal {
    /// For the launcher's stdout.
    pub(crate) fn new(json_output: bool) -> Self {
        let is_interactive = !json_output && io::stdout().is_terminal();
        Self { json_output, is_interactive, has_progress_line: false, last_progress: None }
    }

    /// Whether a person is watching.
    pub(crate) fn is_interactive(&self) -> bool {
        self.is_interactive
    }

    /// Shows how far a phase is.
    pub(crate) fn progress(&mut self, id: ChildId, progress: &Progress) {
        if self.is_interactive {
            self.has_progress_line = true;
            self.write(&format!("\r\x1b[2K{}", bar(id, progress)));
        } else if self.is_due(progress) {
            let Progress { phase, done, total } = progress;
            tracing::info!("{id}: {phase} {done}/{total}");
        }
    }

    /// Takes the progress line away before something else is written.
    pub(crate) fn clear_progress(&mut self) {
        if std::mem::take(&mut self.has_progress_line) {
            self.write("\r\x1b[2K");
        }
    }

    /// Shows a line of a child's log under its label.
    pub(crate) fn log_line(&mut self, id: ChildId, line: &LogLine) {
        self.clear_progress();
        if self.json_output {
            self.write(&format!("{}\n", labelled_json(id, line)));
            return;
        }
        let text = line.text();
        match line.level.as_str() {
            "ERROR" => tracing::error!("{id}: {text}"),
            "WARN" => tracing::warn!("{id}: {text}"),
            "DEBUG" => tracing::debug!("{id}: {text}"),
            "TRACE" => tracing::trace!("{id}: {text}"),
            _ => tracing::info!("{id}: {text}"),
        }
    }

    /// Shows text a child wrote past its log, such as a panic of a library.
    pub(crate) fn raw_line(&mut self, id: ChildId, line: &str) {
        self.clear_progress();
        tracing::warn!("{id}: {line}");
    }

    /// Writes text as it is.
    pub(crate) fn write(&mut self, text: &str) {
        let mut stdout = io::stdout().lock();
        // A closed stdout must not end the server.
        let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    }

    /// Whether this is worth a line: a phase begins, ends, or has been silent for a while.
    fn is_due(&mut self, progress: &Progress) -> bool {
        let now = Instant::now();
        let is_due = match &self.last_progress {
            None => true,
            Some((last, _)) if last == progress => false,
            Some((last, shown)) => {
                let has_turned = last.phase != progress.phase || progress.done == progress.total;
                has_turned || now.duration_since(*shown) >= PROGRESS_INTERVAL
            }
        };
        if is_due {
            self.last_progress = Some((progress.clone(), now));
        }
        is_due
    }
}

fn bar(id: ChildId, progress: &Progress) -> String {
    let Progress { phase, done, total } = progress;
    let share = |cells: u64| (done * cells).checked_div(*total).unwrap_or(0).min(cells);
    let filled = share(BAR_CELLS);
    let bar: String = (0..BAR_CELLS).map(|cell| if cell < filled { '█' } else { '░' }).collect();
    format!("{id}: {phase} {bar} {:3} %", share(100))
}

fn labelled_json(id: ChildId, line: &LogLine) -> Value {
    let LogLine { level, message, target, timestamp, fields } = line;
    let mut object = Map::new();
    for (name, value) in [("timestamp", timestamp), ("level", level), ("message", message), ("target", target)] {
        object.insert(name.into(), value.clone().into());
    }
    object.insert("process".into(), id.to_string().into());
    if let ChildId::Shard(rank) = id {
        object.insert("rank".into(), rank.into());
    }
    object.extend(fields.clone());
    object.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_bar(done: u64, total: u64, filled: usize, percent: &str) {
        let text = bar(ChildId::Shard(0), &Progress { phase: "load weights".into(), done, total });
        assert_eq!(text.matches('█').count(), filled, "{text}");
        assert!(text.starts_with("shard-0: load weights ") && text.ends_with(percent), "{text}");
    }

    #[test]
    fn bars() {
        check_bar(0, 0, 0, "  0 %");
        check_bar(1, 2, 12, " 50 %");
        check_bar(7, 7, 24, "100 %");
        check_bar(9, 7, 24, "100 %");
    }

    #[test]
    fn json_lines_carry_process_and_rank() {
        let line = LogLine::parse(r#"{"level":"INFO","message":"m","target":"t","timestamp":"now","x":1}"#).unwrap();
        let json = labelled_json(ChildId::Shard(3), &line);
        assert_eq!(json["process"], "shard-3");
        assert_eq!(json["rank"], 3);
        assert_eq!(json["x"], 1);
        assert_eq!(labelled_json(ChildId::Router, &line).get("rank"), None);
    }
}
