//! A parser of server-sent events, which receives bytes and returns the data of each event.
//!
//! The parser follows the HTML standard as far as the servers need it: it reads only data, and lines end only in `\n`
//! or `\r\n`.

/// The maximum size of an event in bytes. Events of the supported APIs are much smaller.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// The state of the parser: the part of an event that has arrived so far.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    data: Option<String>,
}

/// The error for an event of more than [`MAX_EVENT_BYTES`].
#[derive(Debug, thiserror::Error)]
#[error("an event has more than {MAX_EVENT_BYTES} bytes")]
pub(crate) struct TooLong;

impl Parser {
    /// Parses the next bytes of the stream and returns the data of the events that these bytes complete.
    ///
    /// # Errors
    /// When an event has more than [`MAX_EVENT_BYTES`].
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, TooLong> {
        let mut events = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() + self.data.as_ref().map_or(0, String::len) > MAX_EVENT_BYTES {
                return Err(TooLong);
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                events.extend(self.end_line(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n'])));
            }
        }
        Ok(events)
    }

    /// Parses a line. Returns the data of the event if the line is empty, which ends the event.
    fn end_line(&mut self, line: &str) -> Option<String> {
        if line.is_empty() {
            return self.data.take();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        // Some versions of llama.cpp send errors in a field named `error`, which the standard would ignore.
        if ["data", "error"].contains(&field) {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut self.data {
                Some(data) => data.extend(["\n", value]),
                None => self.data = Some(value.to_owned()),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": comment\n\ndata: {\"a\":1}\n\nevent: x\r\nid: 3\r\ndata:one\r\ndata: two\r\n\r\n\n\
                          error: {\"e\":\"ü\"}\n\ndata\n\ndata: not complete\n";

    #[test]
    fn events_do_not_depend_on_how_bytes_arrive() {
        let expected = ["{\"a\":1}", "one\ntwo", "{\"e\":\"ü\"}", ""];
        for size in [1, 2, 3, 7, STREAM.len()] {
            let mut parser = Parser::default();
            let events: Vec<String> =
                STREAM.as_bytes().chunks(size).flat_map(|chunk| parser.push(chunk).unwrap()).collect();
            assert_eq!(events, expected, "{size} bytes at a time");
        }
    }

    #[test]
    fn an_event_that_never_ends_is_refused() {
        let mut parser = Parser::default();
        let line = [b"data: ".as_slice(), &vec![b'x'; 1 << 20], b"\n"].concat();
        assert!((0..17).any(|_| parser.push(&line).is_err()));
    }
}
