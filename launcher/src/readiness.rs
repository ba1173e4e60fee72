//! Waits until a child is ready. For a shard it connects to the socket, sends Hello and reads progress messages until
//! the reply comes. For the router it reads a pipe that the router inherited.
//!
//! A message signals readiness, never the existence of a file or a line of the log.

use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use endpoint::{Endpoint, Stream};
use proto::{Command, HEADER_BYTES, Hello, PROTOCOL_VERSION, Reply, command, frame, reply};
use router::Ready;
use rustix::io::FdFlags;

use crate::event::{ChildId, Event};

/// The time until a shard listens. It does so before anything else.
const CONNECT_DEADLINE: Duration = Duration::from_secs(20);
const CONNECT_INTERVAL: Duration = Duration::from_millis(10);
/// The longest silence of a shard that loads. It reports several times a second.
const SILENCE_DEADLINE: Duration = Duration::from_secs(20);

/// More bytes than any line of the router.
const MAX_READY_BYTES: u64 = 64 << 10;

/// The sequence number of the first command of a connection.
const HELLO_NUMBER: u64 = 1;

/// Cancels the wait when dropped. The supervisor drops it when the shard is ready or has ended.
#[derive(Debug)]
pub(crate) struct Watch {
    _cancel: SyncSender<()>,
}

#[derive(Debug, thiserror::Error)]
enum ReadinessError {
    #[error("it did not listen on {endpoint} within {seconds} s: {source}", seconds = CONNECT_DEADLINE.as_secs())]
    Connect { endpoint: Endpoint, source: io::Error },
    #[error("it closed its socket or sent nothing for {seconds} s: {0}", seconds = SILENCE_DEADLINE.as_secs())]
    Socket(#[from] io::Error),
    #[error("it sent an invalid message: {0}")]
    Frame(#[from] proto::FrameError),
    #[error("it answered command {0}, but only command {HELLO_NUMBER} was sent")]
    SequenceNumber(u64),
    #[error("{0}")]
    Shard(proto::ShardError),
    #[error("its reply to Hello is of another kind")]
    UnexpectedReply,
}

/// Watches the shard `id` from a thread of its own. The outcome arrives as an event.
pub(crate) fn watch(id: ChildId, endpoint: Endpoint, events: SyncSender<Event>) -> Watch {
    let (cancel, cancelled) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let event = match wait(&endpoint, &cancelled) {
            Ok(true) => Event::Ready(id),
            Ok(false) => return,
            Err(error) => Event::NotReady(id, error.to_string()),
        };
        let _ = events.send(event);
    });
    Watch { _cancel: cancel }
}

/// Makes a pipe on which the router reports that it serves, and the flag that names it. Only the router's process uses
/// the writer, so the caller must close it after the router was started.
///
/// # Errors
/// When the system has no pipe left.
pub(crate) fn router_pipe() -> io::Result<(PipeReader, PipeWriter, String)> {
    let (reader, writer) = io::pipe()?;
    // No close-on-exec, so the file descriptor has the same number in the child.
    rustix::io::fcntl_setfd(&writer, FdFlags::empty())?;
    let flag = format!("--ready-path=/proc/self/fd/{}", writer.as_raw_fd());
    Ok((reader, writer, flag))
}

/// Watches the router from a thread of its own. A router that ends before it serves causes no event here.
pub(crate) fn watch_router(pipe: PipeReader, events: SyncSender<Event>) {
    std::thread::spawn(move || {
        let mut line = String::new();
        // Only one line is read, because the router keeps its end open.
        if BufReader::new(pipe.take(MAX_READY_BYTES)).read_line(&mut line).is_ok()
            && let Some(ready) = Ready::parse(&line)
        {
            let _ = events.send(Event::Serving(ready));
        }
    });
}

/// Returns true if the shard is ready, false if the wait was cancelled.
fn wait(endpoint: &Endpoint, cancelled: &Receiver<()>) -> Result<bool, ReadinessError> {
    let Some(mut stream) = connect(endpoint, cancelled)? else {
        return Ok(false);
    };
    stream.set_read_timeout(Some(SILENCE_DEADLINE))?;
    stream.set_write_timeout(Some(SILENCE_DEADLINE))?;
    let hello = command::Kind::Hello(Hello { protocol_version: PROTOCOL_VERSION });
    let mut buffer = Vec::new();
    frame::encode(&Command { sequence_number: HELLO_NUMBER, kind: Some(hello) }, &mut buffer)?;
    stream.write_all(&buffer)?;
    loop {
        let Reply { sequence_number, kind } = read_reply(&mut stream)?;
        match kind {
            Some(reply::Kind::Error(error)) => return Err(ReadinessError::Shard(error)),
            _ if sequence_number != HELLO_NUMBER => return Err(ReadinessError::SequenceNumber(sequence_number)),
            Some(reply::Kind::Hello(_)) => return Ok(true),
            // A sign of life. The shard also logs its progress, which the log's reader shows.
            Some(reply::Kind::Progress(_)) => {}
            Some(
                reply::Kind::Info(_)
                | reply::Kind::Fit(_)
                | reply::Kind::Warmup(_)
                | reply::Kind::Step(_)
                | reply::Kind::StepDone(_)
                | reply::Kind::Done(_),
            )
            | None => return Err(ReadinessError::UnexpectedReply),
        }
    }
}

fn connect(endpoint: &Endpoint, cancelled: &Receiver<()>) -> Result<Option<Stream>, ReadinessError> {
    let start = Instant::now();
    loop {
        match endpoint.connect() {
            Ok(stream) => return Ok(Some(stream)),
            Err(source) if start.elapsed() > CONNECT_DEADLINE => {
                return Err(ReadinessError::Connect { endpoint: endpoint.clone(), source });
            }
            Err(_) => {}
        }
        match cancelled.recv_timeout(CONNECT_INTERVAL) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

fn read_reply(stream: &mut Stream) -> Result<Reply, ReadinessError> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; frame::body_len(header)?];
    stream.read_exact(&mut body)?;
    Ok(frame::decode(&body)?)
}
