//! One log line. It is created from an event or parsed from JSON, and is written as JSON or as text for people.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value};
use tracing::Level;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::escape;

/// The target of the events of [`progress`](crate::progress).
pub(crate) const PROGRESS_TARGET: &str = "progress";
/// The target of the event of [`fatal`](crate::fatal).
pub(crate) const FATAL_TARGET: &str = "fatal";

/// The maximum size of the message and the text of all fields together, in bytes, before escapes and marks of cuts are
/// added. It keeps lines short enough for the reader of the log.
const MAX_TEXT_BYTES: usize = 32 << 10;

/// One log line.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LogLine {
    /// `ERROR`, `WARN`, `INFO`, `DEBUG` or `TRACE`.
    pub level: String,
    /// The message.
    #[serde(default)]
    pub message: String,
    /// The module that logged the line, or another name that the event gave as its target.
    #[serde(default)]
    pub target: String,
    /// The time in RFC 3339, UTC.
    #[serde(default)]
    pub timestamp: String,
    /// All other fields.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// The progress of one phase of start-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The name of the phase, such as `load weights`.
    pub phase: String,
    /// The number of finished items.
    pub done: u64,
    /// The number of all items.
    pub total: u64,
}

impl LogLine {
    /// Creates a line with the current time and without fields. A long message is cut.
    pub fn now(level: Level, target: &str, message: String) -> Self {
        let mut timestamp = String::new();
        // If the clock cannot be read, the timestamp is empty.
        let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
        let mut line =
            Self { level: level.to_string(), message, target: target.to_owned(), timestamp, fields: Map::new() };
        line.cut();
        line
    }

    /// Parses a line of a process that called [`crate::init`] with `json_output`. Returns `None` if the line is not a
    /// JSON object with a level.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    /// Returns the progress in this line, if [`crate::progress`] wrote it.
    pub fn progress(&self) -> Option<Progress> {
        if self.target != PROGRESS_TARGET {
            return None;
        }
        let phase = self.fields.get("phase")?.as_str()?.to_owned();
        Some(Progress { phase, done: self.fields.get("done")?.as_u64()?, total: self.fields.get("total")?.as_u64()? })
    }

    /// True if [`crate::fatal`] wrote this line.
    pub fn is_fatal(&self) -> bool {
        self.target == FATAL_TARGET
    }

    /// Returns the message and the other fields as `name=value`, on one line, for people.
    pub fn text(&self) -> String {
        let mut text = escape::control(&self.message).into_owned();
        for (name, value) in &self.fields {
            let value = value.as_str().map_or_else(|| Cow::from(value.to_string()), escape::value);
            text.push_str(&format!(" {}={value}", escape::value(name)));
        }
        text
    }

    /// Returns the whole line for people. `process` is the name of the process that wrote the line, or `None` if that
    /// is this process.
    pub fn for_people(&self, process: Option<&str>, is_coloured: bool) -> String {
        let timestamp = escape::control(&self.timestamp);
        let level = format!("{:>5}", escape::control(&self.level));
        let label = process.map(|process| format!("{process}: ")).unwrap_or_default();
        let text = self.text();
        if is_coloured {
            let colour = match self.level.as_str() {
                "ERROR" => 31,
                "WARN" => 33,
                "INFO" => 32,
                "DEBUG" => 34,
                _ => 35,
            };
            return format!("\x1b[2m{timestamp}\x1b[0m \x1b[{colour}m{level}\x1b[0m {label}{text}\n");
        }
        format!("{timestamp} {level} {label}{text}\n")
    }

    /// Returns the whole line as JSON, with a line break at the end.
    pub fn json(&self) -> String {
        let Self { level, message, target, timestamp, fields } = self;
        let mut object = Map::new();
        for (name, value) in [("timestamp", timestamp), ("level", level), ("message", message), ("target", target)] {
            object.insert(name.into(), value.clone().into());
        }
        object.extend(fields.clone());
        escape::control_in_json(Value::Object(object).to_string()) + "\n"
    }

    /// Cuts the message and the text of fields if together they exceed [`MAX_TEXT_BYTES`].
    pub(crate) fn cut(&mut self) {
        let mut num_left = MAX_TEXT_BYTES;
        let fields = self.fields.values_mut().filter_map(|value| match value {
            Value::String(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
        });
        for text in std::iter::once(&mut self.message).chain(fields) {
            escape::cut(text, num_left);
            num_left = num_left.saturating_sub(text.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_line_is_read_back() {
        let text = r#"{"timestamp":"2026-01-01T00:00:00Z","level":"INFO","message":"ready","target":"router","port":80,"model":"demo"}"#;
        let line = LogLine::parse(text).unwrap();
        assert_eq!((line.level.as_str(), line.target.as_str()), ("INFO", "router"));
        assert_eq!(line.text(), "ready port=80 model=demo");
        assert_eq!(line.progress(), None);
        assert_eq!(line.json(), format!("{text}\n"));
        assert_eq!(line.for_people(None, false), "2026-01-01T00:00:00Z  INFO ready port=80 model=demo\n");
        assert_eq!(
            line.for_people(Some("shard-0"), true),
            "\x1b[2m2026-01-01T00:00:00Z\x1b[0m \x1b[32m INFO\x1b[0m shard-0: ready port=80 model=demo\n"
        );
    }

    #[test]
    fn nothing_in_a_line_makes_another_line_or_field() {
        let mut line = LogLine::now(Level::WARN, "router", "a\n2026-01-01 ERROR forged\u{85}\x1b[2J".into());
        line.fields.insert("request_id".into(), "1 status=200\n\u{2028}x".into());
        let people = line.for_people(None, false);
        assert!(people.ends_with(
            "  WARN a\\n2026-01-01 ERROR forged\\u{85}\\u{1b}[2J request_id=\"1 status=200\\n\\u{2028}x\"\n"
        ));
        let json = line.json();
        assert!(!json.trim_end().contains(['\n', '\u{85}', '\u{2028}', '\x1b']), "{json}");
        assert_eq!(LogLine::parse(&json).unwrap(), line);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_where_its_fields_are() {
        let mut line = LogLine::now(Level::INFO, "router", "m".into());
        for name in ["a", "b"] {
            line.fields.insert(name.into(), "x\u{1}".repeat(MAX_TEXT_BYTES).into());
        }
        line.cut();
        let json = line.json();
        assert!(json.len() < 8 * MAX_TEXT_BYTES, "{}", json.len());
        let fields = LogLine::parse(&json).unwrap().fields;
        assert!(fields["a"].as_str().unwrap().ends_with("… (32769 more bytes)"));
        assert_eq!(fields["b"], "… (65536 more bytes)");
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
