//! Server-sent events: bytes in, the data of each event out.
//!
//! After the HTML standard, except that lines end in `\n` or `\r\n` only: no server sends a lone `\r`.

/// No event of these APIs comes near.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// Remembers what has come of the event that is not complete yet.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    data: Option<String>,
}

/// An event larger than any that these APIs send.
#[derive(Debug, thiserror::Error)]
#[error("an event has more than {MAX_EVENT_BYTES} bytes")]
pub(crate) struct TooLong;

impl Parser {
    /// Takes what has arrived and gives the data of the events that it completes.
    ///
    /// # Errors
    /// An event that never seems to end.
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

    /// The event's data when the line is the empty one that ends it.
    fn end_line(&mut self, line: &str) -> Option<String> {
        if line.is_empty() {
            return self.data.take();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        // Some versions of llama.cpp send errors as a field of this name, which a browser would not see.
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
