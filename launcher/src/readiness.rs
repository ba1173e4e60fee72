//! Waits until a child is ready. For a shard, a thread connects to its socket, sends Hello and reads progress messages
//! until the reply to Hello comes. For the router, a thread reads a pipe that the router inherited.
//!
//! Only a message signals readiness; the existence of a file or a line of the log never does.

use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use endpoint::{Endpoint, Stream};
use proto::{Command, HEADER_BYTES, Hello, PROTOCOL_VERSION, Reply, command, frame, reply};
use router::Ready;
use rustix::io::FdFlags;

use crate::event::{ChildId, Event};

/// The maximum time until a shard listens on its socket, which it does before it loads the model.
const CONNECT_DEADLINE: Duration = Duration::from_secs(20);
/// The time between two attempts to connect.
const CONNECT_INTERVAL: Duration = Duration::from_millis(10);
/// The maximum time between two messages of a shard that loads its model. It normally reports progress several times a
/// second.
const SILENCE_DEADLINE: Duration = Duration::from_secs(20);

/// The maximum length of the router's ready line, in bytes. A real line is shorter.
const MAX_READY_BYTES: u64 = 64 << 10;

/// The sequence number of the first command of a connection.
const HELLO_NUMBER: u64 = 1;

/// A running wait for a shard. Dropping it cancels the wait; the supervisor does so when the shard is ready or has
/// ended.
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
    #[error(
        "it answered command {0}, but only command {HELLO_NUMBER} was sent: this is a defect, or another program listens there"
    )]
    SequenceNumber(u64),
    #[error("{0}")]
    Shard(proto::ShardError),
    #[error("it replied to Hello with a message of another kind: this is a defect, or another program listens there")]
    UnexpectedReply,
}

/// Waits for the shard `id` on a new thread, which sends the outcome as an event.
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

/// Creates a pipe on which the router reports that it serves. Returns both ends, and the flag that passes the writer's
/// path to the router. Only the router writes, so the caller must close its writer after the router has started.
///
/// # Errors
/// When the system cannot create a pipe.
pub(crate) fn router_pipe() -> io::Result<(PipeReader, PipeWriter, String)> {
    let (reader, writer) = io::pipe()?;
    // Close-on-exec is off, so that the child inherits the file descriptor under the same number.
    rustix::io::fcntl_setfd(&writer, FdFlags::empty())?;
    let flag = format!("--ready-path=/proc/self/fd/{}", writer.as_raw_fd());
    Ok((reader, writer, flag))
}

/// Waits for the router on a new thread, which sends an event when the router serves. If the router ends before that,
/// this thread sends no event.
pub(crate) fn watch_router(pipe: PipeReader, events: SyncSender<Event>) {
    std::thread::spawn(move || {
        let mut line = String::new();
        // Only one line is read, because the router keeps its end of the pipe open.
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
            // The message only shows that the shard is alive. Its progress is also in its log, from which it is shown.
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
