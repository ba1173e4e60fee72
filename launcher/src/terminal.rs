//! The launcher's output: the children's log lines, labelled with the child's name, and progress. A terminal that can
//! redraw lines shows progress in one line; another log gets a line at intervals.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use telemetry::{LogLine, Progress};
use tracing::Level;

use crate::event::ChildId;

/// The width of a progress bar, in characters.
const BAR_CELLS: u64 = 24;
/// The time between two progress lines in a log that is not a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The launcher's stdout: its capabilities, and the progress that it shows.
#[derive(Debug)]
pub(crate) struct Terminal {
    json_output: bool,
    is_interactive: bool,
    has_bars: bool,
    is_coloured: bool,
    has_progress_line: bool,
    last_progress: Option<(Progress, Instant)>,
}

impl Terminal {
    /// Returns the launcher's stdout. With `json_output` it is never treated as a terminal.
    pub(crate) fn new(json_output: bool) -> Self {
        let stdout = io::stdout();
        Self {
            json_output,
            is_interactive: !json_output && stdout.is_terminal(),
            has_bars: !json_output && telemetry::can_redraw(&stdout),
            is_coloured: !json_output && telemetry::has_colours(&stdout),
            has_progress_line: false,
            last_progress: None,
        }
    }

    /// True if stdout is a terminal and the log is not JSON.
    pub(crate) fn is_interactive(&self) -> bool {
        self.is_interactive
    }

    /// True if lines on stdout can be redrawn and the log is not JSON.
    pub(crate) fn has_bars(&self) -> bool {
        self.has_bars
    }

    /// Shows the progress of a child's phase.
    pub(crate) fn progress(&mut self, id: ChildId, progress: &Progress) {
        if self.has_bars {
            self.has_progress_line = true;
            telemetry::print(format!("\r\x1b[2K{}", bar(id, progress)));
        } else if self.is_due(progress) {
            let Progress { phase, done, total } = progress;
            tracing::info!("{id}: {phase} {done}/{total}");
        }
    }

    /// Erases the progress line before something else is written.
    pub(crate) fn clear_progress(&mut self) {
        if std::mem::take(&mut self.has_progress_line) {
            telemetry::print("\r\x1b[2K".to_owned());
        }
    }

    /// Shows a line of a child's log, labelled with the child's name. The child has already applied its log filter.
    pub(crate) fn log_line(&mut self, id: ChildId, line: &LogLine) {
        self.clear_progress();
        telemetry::print(if self.json_output {
            labelled(id, line).json()
        } else {
            line.for_people(Some(&id.to_string()), self.is_coloured)
        });
    }

    /// Shows text that a child wrote outside its log, such as a panic of a library.
    pub(crate) fn raw_line(&mut self, id: ChildId, line: &str) {
        if tracing::enabled!(Level::WARN) {
            self.log_line(id, &LogLine::now(Level::WARN, "stderr", line.to_owned()));
        }
    }

    /// Shows text as it is if stdout is a terminal, and drops it otherwise.
    pub(crate) fn tell(&mut self, text: String) {
        if self.is_interactive {
            self.clear_progress();
            telemetry::print(text);
        }
    }

    /// True if progress should be logged: it has changed, and a phase begins or ends or the last line is old enough.
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

/// Returns the line with additional fields before its own: the name of the process and, for a shard, its number as
/// `rank`.
fn labelled(id: ChildId, line: &LogLine) -> LogLine {
    let rank = match id {
        ChildId::Shard(rank) => Some(("rank".to_owned(), rank.into())),
        ChildId::Router => None,
    };
    let label = std::iter::once(("process".to_owned(), id.to_string().into())).chain(rank);
    LogLine { fields: label.chain(line.fields.clone()).collect(), ..line.clone() }
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
        let json = labelled(ChildId::Shard(3), &line).json();
        let expected =
            r#"{"timestamp":"now","level":"INFO","message":"m","target":"t","process":"shard-3","rank":3,"x":1}"#;
        assert_eq!(json.trim_end(), expected);
        assert_eq!(labelled(ChildId::Router, &line).fields.get("rank"), None);
    }
}
