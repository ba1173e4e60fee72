//! The logs of the children. The threads that read the lines also show them. The last lines of each child are kept for
//! the error message if that child dies. Reading does not wait until the supervisor has handled an event, so a busy
//! supervisor does not keep a child from writing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use router::HostPage;
use telemetry::LogLine;

use crate::event::ChildId;
use crate::terminal::Terminal;

/// The number of last lines that are kept for each child.
const NUM_LAST_LINES: usize = 5;
/// The router's log message when it serves. On a terminal the launcher shows the banner instead.
const READY: &str = "ready";

/// The logs of all children. The threads that read them and the supervisor share this value.
#[derive(Debug)]
pub(crate) struct ChildLogs {
    state: Mutex<State>,
    /// The pages that show the progress of the shards too.
    page: Option<Arc<HostPage>>,
}

#[derive(Debug)]
struct State {
    terminal: Terminal,
    last_words: BTreeMap<ChildId, LastWords>,
}

/// The last lines of a child's log, and its last error line.
#[derive(Debug, Default)]
struct LastWords {
    error: Option<String>,
    lines: VecDeque<String>,
}

impl ChildLogs {
    /// Returns logs that are shown on the launcher's stdout.
    pub(crate) fn new(json_output: bool, page: Option<Arc<HostPage>>) -> Self {
        let state = State { terminal: Terminal::new(json_output), last_words: BTreeMap::new() };
        Self { state: Mutex::new(state), page }
    }

    /// Shows a line that a child wrote. A child's fatal error appears only at level debug, because the supervisor
    /// reports it once.
    pub(crate) fn show(&self, id: ChildId, line: &str) {
        let mut state = self.lock();
        let State { terminal, last_words } = &mut *state;
        let last_words = last_words.entry(id).or_default();
        let Some(line) = LogLine::parse(line) else {
            last_words.push(line.to_owned(), false);
            terminal.raw_line(id, line);
            return;
        };
        if let Some(progress) = line.progress() {
            if let (Some(page), ChildId::Shard(number)) = (&self.page, id) {
                page.report(number, &progress.phase, progress.done, progress.total);
            }
            terminal.progress(id, &progress);
            return;
        }
        last_words.push(line.text(), line.level == "ERROR");
        if line.is_fatal() {
            tracing::debug!("{id}: {}", line.text());
        } else if !(id == ChildId::Router && line.message == READY && terminal.is_interactive()) {
            terminal.log_line(id, &line);
        }
    }

    /// Returns the last error line of a child; its last lines if it logged no error; "none" if it wrote nothing.
    pub(crate) fn last_words(&self, id: ChildId) -> String {
        self.lock().last_words.get(&id).map_or_else(|| "none".to_owned(), LastWords::text)
    }

    /// Shows text if stdout is a terminal.
    pub(crate) fn tell(&self, text: String) {
        self.lock().terminal.tell(text);
    }

    /// Erases the progress line before something else is written.
    pub(crate) fn clear_progress(&self) {
        self.lock().terminal.clear_progress();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Lines are still shown after a thread has panicked with the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LastWords {
    fn push(&mut self, line: String, is_error: bool) {
        if is_error {
            self.error = Some(line.clone());
        }
        self.lines.push_back(line);
        if self.lines.len() > NUM_LAST_LINES {
            self.lines.pop_front();
        }
    }

    fn text(&self) -> String {
        match &self.error {
            Some(error) => error.clone(),
            None => self.lines.iter().map(String::as_str).collect::<Vec<_>>().join(" | "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_or_the_last_lines_are_kept() {
        let logs = ChildLogs::new(true, None);
        let id = ChildId::Shard(1);
        assert_eq!(logs.last_words(id), "none");
        (0..7).for_each(|index| logs.show(id, &format!("line {index}")));
        assert_eq!(logs.last_words(id), "line 2 | line 3 | line 4 | line 5 | line 6");
        logs.show(id, r#"{"level":"ERROR","message":"broken","x":"a b"}"#);
        logs.show(id, "bye");
        assert_eq!(logs.last_words(id), "broken x=\"a b\"");
        assert_eq!(logs.last_words(ChildId::Router), "none");
    }
}
