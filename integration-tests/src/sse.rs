//! Parses server-sent events without names: `data:` lines with JSON, comments, and blank lines between events.

use std::io::{BufRead, BufReader};

use serde_json::Value;

/// A response that is read event by event. Dropping this value closes the connection.
pub struct SseStream {
    /// HTTP status.
    pub status: u16,
    lines: std::io::Lines<BufReader<ureq::BodyReader<'static>>>,
}

impl SseStream {
    pub(crate) fn new(response: ureq::http::Response<ureq::Body>) -> Self {
        let status = response.status().as_u16();
        let (_, body) = response.into_parts();
        Self { status, lines: BufReader::new(body.into_reader()).lines() }
    }
}

impl Iterator for SseStream {
    type Item = Value;

    /// The JSON of the next event; `None` when the response ends or the connection breaks.
    fn next(&mut self) -> Option<Value> {
        loop {
            let line = self.lines.next()?.ok()?;
            if let Some(data) = line.strip_prefix("data:") {
                return Some(serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data:?}")));
            }
            assert!(line.is_empty() || line.starts_with(':'), "no line of an event stream: {line:?}");
        }
    }
}

impl std::fmt::Debug for SseStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SseStream").field("status", &self.status).finish_non_exhaustive()
    }
}
