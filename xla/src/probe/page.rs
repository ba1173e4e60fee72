//! The lines of the page, and numbers as people read them.

use std::time::Duration;

use super::PROBES;

/// A line of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeLine {
    /// The thing that was tried.
    pub name: String,
    /// The result, or the reason why there is none.
    pub value: Result<String, String>,
}

/// The progress of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeEvent {
    /// The probe at this index of [`PROBES`] begins.
    Begin(usize),
    /// A line of the probe that began last.
    Line(ProbeLine),
}

/// The reason why a probe has no result.
#[derive(Debug)]
pub(super) struct Failure(pub(super) String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// The page, which reports each line at once, so that the lines before a hang are not lost.
pub(super) struct Page<'a> {
    report: &'a mut dyn FnMut(ProbeEvent),
}

impl<'a> Page<'a> {
    /// Returns a page whose lines go to `report`.
    pub(super) fn new(report: &'a mut dyn FnMut(ProbeEvent)) -> Self {
        Self { report }
    }

    /// Reports that the probe at `index` begins.
    pub(super) fn begin(&mut self, index: usize) {
        (self.report)(ProbeEvent::Begin(index));
    }

    /// Adds a line with a value.
    pub(super) fn line(&mut self, name: impl Into<String>, value: impl Into<String>) {
        (self.report)(ProbeEvent::Line(ProbeLine { name: name.into(), value: Ok(value.into()) }));
    }

    /// Adds a line with the reason why there is no value.
    pub(super) fn failed(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        (self.report)(ProbeEvent::Line(ProbeLine { name: name.into(), value: Err(reason.into()) }));
    }

    /// Adds a line with the value, or with the reason why there is none.
    pub(super) fn result(&mut self, name: impl Into<String>, value: Result<String, Failure>) {
        match value {
            Ok(value) => self.line(name, value),
            Err(Failure(reason)) => self.failed(name, reason),
        }
    }

    /// Adds a line with a value that not every plugin has. That a plugin lacks the function is a value too.
    pub(super) fn offered(&mut self, name: impl Into<String>, value: Result<String, pjrt::Error>) {
        match value {
            Ok(value) => self.line(name, value),
            Err(error) if error.is_unimplemented() => self.line(name, format!("not offered: {error}")),
            Err(error) => self.failed(name, error.to_string()),
        }
    }

    /// Returns the value of the probe at `index`. If there is none, adds a line with the reason.
    pub(super) fn outcome<T>(&mut self, index: usize, outcome: Result<T, Failure>) -> Option<T> {
        outcome.map_err(|Failure(reason)| self.failed(PROBES[index].name, reason)).ok()
    }
}

/// Returns a failure unless `holds`.
pub(super) fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure(reason())) }
}

/// Returns a time with a unit that suits it.
pub(super) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..1e-3 => format!("{:.1} µs", seconds * 1e6),
        ..1.0 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// Returns a number of bytes, and from 1 MiB on also the number of MiB.
pub(super) fn bytes(count: u64) -> String {
    const MIB: u64 = 1 << 20;
    if count < MIB { format!("{count} bytes") } else { format!("{count} bytes ({:.1} MiB)", count as f64 / MIB as f64) }
}

/// Returns the speed of a transfer in GB/s.
pub(super) fn rate(bytes: usize, time: Duration) -> String {
    format!("{:.2} GB/s", bytes as f64 / time.as_secs_f64() / 1e9)
}

/// Returns bytes as text if they are printable ASCII without spaces, else as hexadecimal digits.
pub(super) fn readable(bytes: &[u8]) -> String {
    let is_text = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_graphic);
    match std::str::from_utf8(bytes) {
        Ok(text) if is_text => text.to_owned(),
        Ok(_) | Err(_) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
