//! The `tracing` layer that turns each event into a log line.

use std::fmt::Debug;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::LogLine;

/// A layer that passes each event to `show` as a log line.
#[derive(Debug)]
pub(crate) struct LogLayer {
    show: fn(&LogLine),
}

impl LogLayer {
    pub(crate) fn new(show: fn(&LogLine)) -> Self {
        Self { show }
    }
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _ctx: Context<'_, S>) {
        let metadata = event.metadata();
        let mut line = LogLine::now(*metadata.level(), metadata.target(), String::new());
        event.record(&mut Fields(&mut line));
        line.cut();
        (self.show)(&line);
    }
}

struct Fields<'a>(&'a mut LogLine);

impl Fields<'_> {
    fn record(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(message)) => self.0.message = message,
            (name, value) => {
                // `tracing` names the field `type` `r#type`.
                let name = name.strip_prefix("r#").unwrap_or(name);
                self.0.fields.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.record(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.record(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.record(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    static LINES: Mutex<Vec<LogLine>> = Mutex::new(Vec::new());

    #[test]
    fn events_become_lines() {
        let subscriber =
            tracing_subscriber::registry().with(LogLayer::new(|line| LINES.lock().unwrap().push(line.clone())));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "t", r#type = "a b", shown = %"c", count = 3_u64, left = -1_i64, is = true, "m {}", 1);
        });
        let line = LINES.lock().unwrap().pop().unwrap();
        assert_eq!((line.level.as_str(), line.target.as_str()), ("WARN", "t"));
        assert_eq!(line.text(), "m 1 type=\"a b\" shown=c count=3 left=-1 is=true");
        assert!(line.timestamp.starts_with("20") && line.timestamp.ends_with('Z'), "{}", line.timestamp);
    }
}
