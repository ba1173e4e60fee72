//! One connection to a subscriber: reads, writes and deadlines around a session of ZeroMQ's protocol.
//!
//! Entry points: [`Peer::shake_hands`], then [`Peer::turn`] in a loop. Bytes to write have a bound: while more wait,
//! the caller adds no message, and the peer is not read.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};
use zmtp::{Incoming, Session, SocketType, ZmtpError};

use crate::memory::Held;
use crate::places::Place;
use sockets::Socket;

/// The maximum time for the handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

/// The maximum time without a subscription that matches the topic.
pub(super) const SUBSCRIPTION_DEADLINE: Duration = Duration::from_secs(30);

/// A peer is cut off when nothing could be written to its connection for this long.
const TAKE_DEADLINE: Duration = Duration::from_secs(60);

/// The number of bytes of a message with all blocks that a peer must take within [`TAKE_DEADLINE`], because other peers
/// wait for its memory.
const MIN_TAKEN_BYTES: usize = 1 << 20;

/// While at least this number of bytes waits to be written, no more are added.
const MAX_UNWRITTEN_BYTES: usize = 64 << 10;

const READ_BYTES: usize = 4096;

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerError {
    #[error("the peer closed the connection")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ZmtpError),
    #[error("the handshake took longer than {} s", HANDSHAKE_DEADLINE.as_secs())]
    Handshake,
    #[error("messages with all blocks for other peers take the memory for one for this peer")]
    NoRoom,
    #[error("the peer did not subscribe to the topic within {} s", SUBSCRIPTION_DEADLINE.as_secs())]
    NotSubscribed,
    #[error("another connection needs its place")]
    Dismissed,
    #[error("the peer read nothing, or too little of all blocks, for {} s", TAKE_DEADLINE.as_secs())]
    Stalled,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Peer {
    reader: Socket,
    writer: Socket,
    session: Session,
    unwritten: Vec<u8>,
    /// The number of bytes of `unwritten` that were written.
    num_written: usize,
    /// The time until which the next byte must be written, or those up to `num_due` of a large message.
    write_deadline: Instant,
    num_due: usize,
    /// The memory of a large message in `unwritten`.
    held: Option<Held>,
    /// The place of a connection that was made to this server.
    place: Option<Arc<Place>>,
}

impl Peer {
    /// Creates a connection on which nothing was sent yet.
    pub(super) fn new(socket: Socket, socket_type: SocketType, place: Option<Arc<Place>>) -> Self {
        Self {
            reader: socket.clone(),
            writer: socket,
            session: Session::new(socket_type),
            unwritten: Vec::new(),
            num_written: 0,
            write_deadline: Instant::now(),
            num_due: 0,
            held: None,
            place,
        }
    }

    /// Does the handshake, and returns the first news after it.
    ///
    /// # Errors
    /// When the peer speaks another protocol, is too slow, or closes the connection.
    pub(super) async fn shake_hands(&mut self) -> Result<Vec<Incoming>, PeerError> {
        let ready = async {
            loop {
                let mut news = self.turn(true, std::future::pending()).await?;
                if news.first() == Some(&Incoming::Ready) {
                    news.remove(0);
                    return Ok(news);
                }
            }
        };
        timeout_at(Instant::now() + HANDSHAKE_DEADLINE, ready).await.unwrap_or(Err(PeerError::Handshake))
    }

    /// Shows that the peer has a subscription that matches the topic, or has none.
    pub(super) fn show_subscribed(&self, is_subscribed: bool) {
        match &self.place {
            Some(place) if is_subscribed => place.serve(),
            Some(place) => place.wait(),
            None => {}
        }
    }

    /// True if the connection was made to this server.
    pub(super) fn has_place(&self) -> bool {
        self.place.is_some()
    }

    /// True if everything was written, so that the next messages may be added.
    pub(super) fn is_drained(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// True if there is room for another message.
    pub(super) fn has_room(&self) -> bool {
        self.unwritten.len() < MAX_UNWRITTEN_BYTES
    }

    /// Adds a message to the bytes to write.
    pub(super) fn add(&mut self, frames: &[&[u8]]) {
        self.note_unwritten(|bytes| zmtp::write_message(frames, bytes));
    }

    /// Holds the memory of a large message until everything is written.
    pub(super) fn hold(&mut self, held: Held) {
        self.held = Some(held);
    }

    /// Reads or writes some bytes, or waits until `wake` is complete, whichever comes first. Returns the news from the
    /// peer. The peer is read only if `reads` is true.
    ///
    /// # Errors
    /// When the connection has ended, or must end.
    pub(super) async fn turn(
        &mut self,
        reads: bool,
        wake: impl Future<Output = ()>,
    ) -> Result<Vec<Incoming>, PeerError> {
        let unsent = self.session.take_unsent();
        self.note_unwritten(|bytes| bytes.extend(unsent));
        let mut buffer = [0; READ_BYTES];
        let reads = reads && self.has_room();
        let Self { reader, writer, unwritten, num_written, write_deadline, num_due, held, .. } = self;
        tokio::select! {
            num_read = reader.read(&mut buffer), if reads => match num_read? {
                0 => Err(PeerError::Closed),
                num_read => self.take(&buffer[..num_read]).await,
            },
            written = timeout_at(*write_deadline, writer.write(&unwritten[*num_written..])), if !unwritten.is_empty() => {
                *num_written += written.map_err(|_| PeerError::Stalled)??;
                if held.is_none() || *num_written >= *num_due {
                    *write_deadline = Instant::now() + TAKE_DEADLINE;
                    *num_due = *num_written + MIN_TAKEN_BYTES;
                }
                if *num_written == unwritten.len() {
                    unwritten.clear();
                    if held.take().is_some() {
                        unwritten.shrink_to(2 * MAX_UNWRITTEN_BYTES);
                    }
                    (*num_written, *num_due) = (0, 0);
                }
                Ok(Vec::new())
            }
            () = wake => Ok(Vec::new()),
        }
    }

    /// Takes received bytes. A peer that is sent away gets the reason, if it can be written at once.
    async fn take(&mut self, bytes: &[u8]) -> Result<Vec<Incoming>, PeerError> {
        match self.session.receive(bytes) {
            Ok(news) => {
                if let Some(place) = &self.place
                    && news.iter().any(|news| matches!(news, Incoming::Request(_)))
                {
                    place.wait();
                }
                Ok(news)
            }
            Err(error) => {
                let unsent = self.session.take_unsent();
                if self.unwritten.is_empty() && !unsent.is_empty() {
                    let _ = timeout_at(Instant::now() + Duration::from_secs(1), self.writer.write(&unsent)).await;
                }
                Err(error.into())
            }
        }
    }

    fn note_unwritten(&mut self, add: impl FnOnce(&mut Vec<u8>)) {
        if self.unwritten.is_empty() {
            self.write_deadline = Instant::now() + TAKE_DEADLINE;
        }
        add(&mut self.unwritten);
    }
}
