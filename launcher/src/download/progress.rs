//! Shows the progress of a download. A terminal shows a bar for each file; another log gets a line when a file starts,
//! at intervals, and when it is complete.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, HumanDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::cache::Snapshot;
use super::error::HubError;

/// The time between two lines about one file.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
const BAR: &str =
    "{msg} {bar:24} {decimal_bytes:>9} of {decimal_total_bytes:9} {decimal_bytes_per_sec:>11}, {eta} left";

/// An event of a download.
#[derive(Debug)]
pub(crate) enum Event {
    /// The download of a file starts; `done_bytes` is the number of bytes from an earlier download.
    Started { name: String, size_bytes: u64, done_bytes: u64 },
    /// The first `done_bytes` bytes of a file have been received.
    Received { name: String, done_bytes: u64 },
    /// A file is complete and is in the cache.
    Finished { name: String },
    /// Another process is downloading the file; this one waits.
    Waiting { name: String },
    /// A request failed and will be tried again after `delay`.
    Retrying { error: String, delay: Duration },
    /// The Hub cannot be reached or has a temporary problem, so the model in the cache is used as it is.
    Fallback { error: String },
    /// The download is over.
    Ended(Result<Snapshot, HubError>),
}

/// The display of a download's progress, with the state of each file.
#[derive(Debug)]
pub(crate) struct Display {
    files: BTreeMap<String, FileProgress>,
    /// The bars, if the display has bars.
    bars: Option<MultiProgress>,
    /// The last error that was shown. An equal error is not shown again right after it.
    last_error: String,
}

#[derive(Debug)]
struct FileProgress {
    bar: Option<ProgressBar>,
    size_bytes: u64,
    done_bytes: u64,
    /// The number of bytes from an earlier download, which do not count for the rate.
    first_bytes: u64,
    start: Instant,
    last_line: Instant,
}

impl Display {
    /// Creates a display on stdout, with bars if `has_bars`.
    pub(crate) fn new(has_bars: bool) -> Self {
        let bars = has_bars.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stdout()));
        Self { files: BTreeMap::new(), bars, last_error: String::new() }
    }

    /// Shows an event.
    pub(crate) fn show(&mut self, event: Event) {
        match event {
            Event::Started { name, size_bytes, done_bytes } => self.start(name, size_bytes, done_bytes),
            Event::Received { name, done_bytes } => self.advance(&name, done_bytes),
            Event::Finished { name } => self.finish(&name),
            Event::Waiting { name } => self.line(|| tracing::info!("waiting for another download of {name}")),
            Event::Retrying { error, delay } if self.last_error != error => {
                self.line(|| tracing::warn!("{error}; trying again in {:.1} s", delay.as_secs_f64()));
                self.last_error = error;
            }
            Event::Retrying { .. } => {}
            Event::Fallback { error } => self.line(|| tracing::warn!("{error}; the model is taken from the cache")),
            // The caller logs the outcome.
            Event::Ended(_) => {}
        }
    }

    fn start(&mut self, name: String, size_bytes: u64, done_bytes: u64) {
        let bar = self.bars.as_ref().map(|bars| {
            let style = ProgressStyle::with_template(BAR).expect("the template is valid").progress_chars("█░░");
            // The bar must not be drawn before it belongs to the group of bars.
            let bar = ProgressBar::with_draw_target(Some(size_bytes), ProgressDrawTarget::hidden())
                .with_style(style)
                .with_position(done_bytes);
            bar.set_message(name.clone());
            // This makes the bar's rate count only new bytes.
            bar.reset_eta();
            bars.add(bar)
        });
        if bar.is_none() {
            let size = DecimalBytes(size_bytes);
            match done_bytes {
                0 => tracing::info!("downloading {name}, {size}"),
                _ => tracing::info!(
                    "downloading {name}, {size}, of which {} were received earlier",
                    DecimalBytes(done_bytes)
                ),
            }
        }
        let now = Instant::now();
        let file = FileProgress { bar, size_bytes, done_bytes, first_bytes: done_bytes, start: now, last_line: now };
        self.files.insert(name, file);
    }

    fn advance(&mut self, name: &str, done_bytes: u64) {
        let Some(file) = self.files.get_mut(name) else { return };
        file.done_bytes = done_bytes;
        file.first_bytes = file.first_bytes.min(done_bytes);
        let now = Instant::now();
        match &file.bar {
            Some(bar) => bar.set_position(done_bytes),
            None if now.duration_since(file.last_line) >= LINE_INTERVAL => {
                file.last_line = now;
                tracing::info!("{name}: {}", file.text(now.duration_since(file.start)));
            }
            None => {}
        }
    }

    fn finish(&mut self, name: &str) {
        let Some(file) = self.files.remove(name) else { return };
        if let Some(bar) = &file.bar {
            // A finished bar is removed, because a model may have more files than a terminal has lines.
            bar.finish_and_clear();
        }
        let text = file.end_text(file.start.elapsed());
        self.line(|| tracing::info!("downloaded {name}, {text}"));
    }

    /// Writes a line above the bars.
    fn line(&self, write: impl FnOnce()) {
        match &self.bars {
            Some(bars) => bars.suspend(|| {
                write();
                // The line must be written before the bars are drawn again.
                telemetry::flush();
            }),
            None => write(),
        }
    }
}

impl FileProgress {
    /// Returns the text with the percentage, the rate and the time left.
    fn text(&self, elapsed: Duration) -> String {
        let percent = (self.done_bytes * 100).checked_div(self.size_bytes).unwrap_or(100);
        let rate = (self.done_bytes - self.first_bytes) as f64 / elapsed.as_secs_f64().max(1e-3);
        let left = (self.size_bytes.saturating_sub(self.done_bytes)) as f64 / rate.max(1.0);
        let left = HumanDuration(Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX));
        let (size, rate) = (DecimalBytes(self.size_bytes), DecimalBytes(rate as u64));
        format!("{percent} % of {size}, {rate}/s, {left} left")
    }

    /// Returns the text for a complete file, with the size and the time of this download.
    fn end_text(&self, elapsed: Duration) -> String {
        let (new, seconds) = (DecimalBytes(self.size_bytes.saturating_sub(self.first_bytes)), elapsed.as_secs_f64());
        match self.first_bytes {
            0 => format!("{new}, in {seconds:.1} s"),
            first => format!("{new}, in {seconds:.1} s; {} were received earlier", DecimalBytes(first)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_share_rate_and_time_left() {
        let now = Instant::now();
        let file = |size_bytes, done_bytes, first_bytes| FileProgress {
            bar: None,
            size_bytes,
            done_bytes,
            first_bytes,
            start: now,
            last_line: now,
        };
        let text = file(5_000_000_000, 2_000_000_000, 1_000_000_000).text(Duration::from_secs(10));
        insta::assert_snapshot!(text, @"40 % of 5.00 GB, 100.00 MB/s, 30 seconds left");
        assert!(file(0, 0, 0).text(Duration::ZERO).starts_with("100 % of 0 B, 0 B/s, "));
        let end = |first_bytes| file(5_000_000_000, 5_000_000_000, first_bytes).end_text(Duration::from_millis(2500));
        insta::assert_snapshot!(end(0), @"5.00 GB, in 2.5 s");
        insta::assert_snapshot!(end(4_000_000_000), @"1.00 GB, in 2.5 s; 4.00 GB were received earlier");
    }

    #[test]
    fn bars_can_be_drawn() {
        let mut display = Display::new(true);
        display.show(Event::Started { name: "a".into(), size_bytes: 10, done_bytes: 3 });
        display.show(Event::Received { name: "a".into(), done_bytes: 7 });
        assert_eq!(display.files["a"].bar.as_ref().unwrap().position(), 7);
        display.show(Event::Finished { name: "a".into() });
        assert!(display.files.is_empty());
    }
}
