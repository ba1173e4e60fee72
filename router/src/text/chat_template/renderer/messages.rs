//! The messages between this process and a process that renders: a line of JSON, and bytes whose number is in the line.

use std::io::{self, BufRead, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::text::chat_template::ChatTemplateError;

/// The maximum length of a line, in bytes. All lines are shorter.
const MAX_LINE_BYTES: u64 = 4 << 10;

/// The limits of one work, in addition to what the process had taken before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::text::chat_template) struct Limits {
    pub(in crate::text::chat_template) memory_bytes: u64,
    /// Processor time, in seconds.
    pub(in crate::text::chat_template) seconds: u64,
}

/// The message to a process that renders.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) work: Work,
    pub(super) limits: Limits,
}

/// The work on the bytes of a message, which are JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Work {
    /// Compiles the template, a `TemplateSource`. It is the first message of each process.
    Compile,
    /// Renders a `Conversation`.
    Render,
}

/// The reply. A process that exceeds a limit sends none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The bytes are the rendered text.
    Done,
    Failed(Failure),
}

/// The reason why a work failed. The bytes are the sentence of the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Failure {
    Unreadable,
    Raised,
    Failed,
    TooManySteps,
}

impl Failure {
    /// Divides an error into its reason and its sentence.
    pub(super) fn of(error: ChatTemplateError) -> (Self, String) {
        match error {
            ChatTemplateError::Unreadable(sentence) => (Self::Unreadable, sentence),
            ChatTemplateError::Raised(sentence) => (Self::Raised, sentence),
            ChatTemplateError::TooManySteps => (Self::TooManySteps, String::new()),
            ChatTemplateError::Failed(sentence) => (Self::Failed, sentence),
            other => (Self::Failed, other.to_string()),
        }
    }

    pub(super) fn with_sentence(self, sentence: String) -> ChatTemplateError {
        match self {
            Self::Unreadable => ChatTemplateError::Unreadable(sentence),
            Self::Raised => ChatTemplateError::Raised(sentence),
            Self::Failed => ChatTemplateError::Failed(sentence),
            Self::TooManySteps => ChatTemplateError::TooManySteps,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Line<T> {
    message: T,
    num_bytes: usize,
}

/// Sends a message with its bytes.
///
/// # Errors
/// When the other process is gone.
pub(super) fn send(out: &mut impl Write, message: &impl Serialize, bytes: &[u8]) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Line { message, num_bytes: bytes.len() })?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.write_all(bytes)
}

/// Receives a message, and the number of its bytes, which are read with [`receive_bytes`]. Returns `None` if the other
/// process has closed the connection.
///
/// # Errors
/// When the line is not such a message, or reading fails.
pub(super) fn receive<T: DeserializeOwned>(input: &mut impl BufRead) -> io::Result<Option<(T, usize)>> {
    let mut line = Vec::new();
    input.take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    let Line { message, num_bytes } = serde_json::from_slice(&line)?;
    Ok(Some((message, num_bytes)))
}

/// Reads the bytes of a message.
///
/// # Errors
/// When fewer bytes come, or there is no memory for them.
pub(super) fn receive_bytes(input: &mut impl Read, num_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(num_bytes).map_err(io::Error::other)?;
    input.take(num_bytes as u64).read_to_end(&mut bytes)?;
    if bytes.len() < num_bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_with_their_bytes() {
        let mut wire = Vec::new();
        send(&mut wire, &Reply::Done, "é\n".as_bytes()).unwrap();
        send(&mut wire, &Reply::Failed(Failure::TooManySteps), b"").unwrap();
        let mut input = wire.as_slice();
        assert_eq!(receive(&mut input).unwrap(), Some((Reply::Done, 3)));
        assert_eq!(receive_bytes(&mut input, 3).unwrap(), "é\n".as_bytes());
        assert_eq!(receive(&mut input).unwrap(), Some((Reply::Failed(Failure::TooManySteps), 0)));
        assert_eq!(receive::<Reply>(&mut input).unwrap(), None);
        assert!(receive_bytes(&mut b"ab".as_slice(), 3).is_err());
        assert!(receive_bytes(&mut b"ab".as_slice(), usize::MAX).is_err());
        assert!(receive::<Reply>(&mut [b'x'; 9000].as_slice()).is_err());
    }
}
