//! The connection to one client, as frames that are read and written.
//!
//! Entry point: [`Connection`]. It handles frames and deadlines and does not interpret commands.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use endpoint::Stream;
use proto::{Command, FrameError, HEADER_BYTES, Reply, frame, reply};

/// The maximum time of a write to the socket. A client that reads nothing for so long counts as gone.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// The reason why a client can no longer be read from or written to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("the connection was closed")]
    Closed,
    #[error("no first command arrived within {0:?}")]
    Deadline(Duration),
    #[error("the socket failed: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// A connected client.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    /// The bytes of the command that is read; the buffer is reused for all commands.
    buffer: Vec<u8>,
    sender: Sender,
}

/// The sending side of a connection. Clones share it, and each reply is sent as a whole.
#[derive(Debug, Clone)]
pub(super) struct Sender(Arc<Mutex<Sending>>);

#[derive(Debug)]
struct Sending {
    stream: Stream,
    /// The bytes of the current frame; the buffer is reused for all frames.
    buffer: Vec<u8>,
    /// True after a write has failed. The client may have a part of a frame, so nothing more is sent.
    is_broken: bool,
}

impl Connection {
    /// Returns a connection over `stream`.
    ///
    /// # Errors
    /// When the system refuses a copy of the socket.
    pub(super) fn new(stream: Stream) -> io::Result<Self> {
        let sending = Sending { stream: stream.try_clone()?, buffer: Vec::new(), is_broken: false };
        Ok(Self { stream, buffer: Vec::new(), sender: Sender(Arc::new(Mutex::new(sending))) })
    }

    /// The sending side.
    pub(super) fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// Reads the next command, without a deadline.
    pub(super) fn read(&mut self) -> Result<Command, ConnectionError> {
        self.stream.set_read_timeout(None)?;
        self.read_frame(None)
    }

    /// Reads the next command, which must arrive completely within `deadline`.
    pub(super) fn read_before(&mut self, deadline: Duration) -> Result<Command, ConnectionError> {
        let result = self.read_frame(Some(Instant::now() + deadline));
        match result {
            Err(ConnectionError::Io(error))
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Err(ConnectionError::Deadline(deadline))
            }
            other => other,
        }
    }

    /// Sends one reply. After a write has failed, the connection counts as closed.
    pub(super) fn reply(&mut self, sequence_number: u64, kind: reply::Kind) -> Result<(), ConnectionError> {
        self.sender.reply(sequence_number, kind)
    }

    fn read_frame(&mut self, until: Option<Instant>) -> Result<Command, ConnectionError> {
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header, until)?;
        let mut body = std::mem::take(&mut self.buffer);
        body.clear();
        body.resize(frame::body_len(header)?, 0);
        let filled = self.fill(&mut body, until);
        self.buffer = body;
        filled?;
        Ok(frame::decode(&self.buffer)?)
    }

    fn fill(&mut self, mut bytes: &mut [u8], until: Option<Instant>) -> Result<(), ConnectionError> {
        while !bytes.is_empty() {
            if let Some(until) = until {
                let left = until.saturating_duration_since(Instant::now());
                // A timeout of zero would be an error.
                self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            }
            match self.stream.read(bytes) {
                Ok(0) => return Err(ConnectionError::Closed),
                Ok(len) => bytes = &mut bytes[len..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Sender {
    /// Sends one reply. After a write has failed, the connection counts as closed.
    pub(super) fn reply(&self, sequence_number: u64, kind: reply::Kind) -> Result<(), ConnectionError> {
        let mut sending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Sending { stream, buffer, is_broken } = &mut *sending;
        if *is_broken {
            return Err(ConnectionError::Closed);
        }
        buffer.clear();
        frame::encode(&Reply { sequence_number, kind: Some(kind) }, buffer)?;
        stream.set_write_timeout(Some(WRITE_DEADLINE))?;
        let written = stream.write_all(buffer);
        *is_broken = written.is_err();
        Ok(written?)
    }
}

impl AsFd for Connection {
    /// The socket. No bytes are read before they are needed, so it is readable if a command has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use proto::Done;

    use super::*;

    #[test]
    fn after_a_failed_write_nothing_more_is_sent() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.shutdown(Shutdown::Write).unwrap();
        let mut connection = Connection::new(Stream::Unix(ours)).unwrap();
        let mut send = || connection.reply(1, reply::Kind::Done(Done {}));
        assert!(matches!(send(), Err(ConnectionError::Io(_))));
        assert!(matches!(send(), Err(ConnectionError::Closed)));
    }
}
