//! Waits until a child is ready, and notices one that hangs. For a shard, a thread connects to its socket, sends Hello
//! and reads progress messages until the reply to Hello comes, then beats until the router starts, which watches the
//! shards itself. For the router, a thread reads a pipe that the router inherited.
//!
//! Only a message signals readiness; the existence of a file or a line of the log never does.

use std::io::{self, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use build_id::BuildId;
use endpoint::{Endpoint, Stream};
use liveness::{AwakeTime, PatientReader, SILENCE_DEADLINE, TICK};
use proto::{Command, HEADER_BYTES, Hello, PROTOCOL_VERSION, Reply, command, frame, reply};
use router::{BEAT, HostPage, PORT_WANTED, Ready};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::FdFlags;

use crate::event::{ChildId, Event};
use crate::process::read_line;

/// The maximum time until a shard listens on its socket, which it does before it loads the model.
const CONNECT_DEADLINE: Duration = Duration::from_secs(20);
/// The time between two attempts to connect.
const CONNECT_INTERVAL: Duration = Duration::from_millis(10);
/// The maximum time from the end of a watch to the end of its connection. The shard serves one connection at a time, so
/// the router waits for that.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);
/// The sequence number of the first command of a connection.
const HELLO_NUMBER: u64 = 1;

/// The watch of a shard. It ends when this value is dropped; the supervisor does so when the router starts or the shard
/// has ended.
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

/// Waits for the shard `id` on a new thread, which sends the outcome as an event. If the shard is ready and then gives
/// no sign of life, the thread sends another event.
pub(crate) fn watch(id: ChildId, endpoint: Endpoint, events: SyncSender<Event>) -> Watch {
    let (cancel, cancelled) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let event = match wait(&endpoint, &cancelled) {
            Ok(Some(stream)) => {
                let _ = events.send(Event::Ready(id));
                if !becomes_silent(stream, &cancelled) {
                    return;
                }
                Event::Silent(id)
            }
            Ok(None) => return,
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

/// Reads the messages of the router on a new thread until the router ends. The thread closes the port of `page` when
/// the router wants it. It sends an event when the router serves, and one when the router gives no sign of life.
pub(crate) fn watch_router(pipe: PipeReader, page: Option<Arc<HostPage>>, events: SyncSender<Event>) {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(PatientReader::new(TickingPipe(pipe), SILENCE_DEADLINE));
        loop {
            match read_line(&mut lines) {
                Ok(Some(line)) if line == BEAT.trim_end() => {}
                Ok(Some(line)) if line == PORT_WANTED.trim_end() => page.iter().for_each(|page| page.close()),
                Ok(Some(line)) => {
                    if let Some(ready) = Ready::parse(&line) {
                        let _ = events.send(Event::Serving(ready));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    let _ = events.send(Event::Silent(ChildId::Router));
                    return;
                }
                Ok(None) | Err(_) => return,
            }
        }
    });
}

/// A pipe whose reads are given up after a tick.
#[derive(Debug)]
struct TickingPipe(PipeReader);

impl Read for TickingPipe {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let tick = Timespec::try_from(TICK).map_err(io::Error::other)?;
        match rustix::event::poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&tick))? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => self.0.read(bytes),
        }
    }
}

/// Returns the connection to the shard once it is ready, or `None` if the wait was cancelled.
fn wait(endpoint: &Endpoint, cancelled: &Receiver<()>) -> Result<Option<Stream>, ReadinessError> {
    let Some(mut stream) = connect(endpoint, cancelled)? else {
        return Ok(None);
    };
    stream.set_read_timeout(Some(TICK))?;
    stream.set_write_timeout(Some(SILENCE_DEADLINE))?;
    let build = Some(BuildId::of_process().to_string());
    let hello = command::Kind::Hello(Hello { protocol_version: PROTOCOL_VERSION, build });
    let mut buffer = Vec::new();
    frame::encode(&Command { sequence_number: HELLO_NUMBER, kind: Some(hello) }, &mut buffer)?;
    stream.write_all(&buffer)?;
    let mut stream = PatientReader::new(stream, SILENCE_DEADLINE);
    loop {
        let Reply { sequence_number, kind } = read_reply(&mut stream)?;
        match kind {
            Some(reply::Kind::Error(error)) => return Err(ReadinessError::Shard(error)),
            _ if sequence_number != HELLO_NUMBER => return Err(ReadinessError::SequenceNumber(sequence_number)),
            Some(reply::Kind::Hello(_)) => return Ok(Some(stream.into_source())),
            // The message only shows that the shard is alive. Its progress is also in its log, from which it is shown.
            Some(reply::Kind::Progress(_)) => {}
            Some(
                reply::Kind::Info(_)
                | reply::Kind::Fit(_)
                | reply::Kind::Warmup(_)
                | reply::Kind::Step(_)
                | reply::Kind::StepDone(_)
                | reply::Kind::Beat(_)
                | reply::Kind::Done(_),
            )
            | None => return Err(ReadinessError::UnexpectedReply),
        }
    }
}

/// Reads the beats of a shard that is ready. Returns true once no more come, and false if the watch was cancelled or
/// the connection has ended.
fn becomes_silent(mut stream: Stream, cancelled: &Receiver<()>) -> bool {
    if stream.set_read_timeout(Some(CANCEL_INTERVAL)).is_err() {
        return false;
    }
    let (mut silence, mut beats) = (AwakeTime::start(Instant::now()), [0; 256]);
    while cancelled.try_recv() == Err(TryRecvError::Empty) {
        match stream.read(&mut beats) {
            Ok(0) => return false,
            Ok(_) => silence.restart(Instant::now()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if silence.look(Instant::now()) >= SILENCE_DEADLINE {
                    return true;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    false
}

fn connect(endpoint: &Endpoint, cancelled: &Receiver<()>) -> Result<Option<Stream>, ReadinessError> {
    let mut waited = AwakeTime::start(Instant::now());
    loop {
        match endpoint.connect() {
            Ok(stream) => return Ok(Some(stream)),
            Err(source) if waited.look(Instant::now()) > CONNECT_DEADLINE => {
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

fn read_reply(stream: &mut impl Read) -> Result<Reply, ReadinessError> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; frame::body_len(header)?];
    stream.read_exact(&mut body)?;
    Ok(frame::decode(&body)?)
}
