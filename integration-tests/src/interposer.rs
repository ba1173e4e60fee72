//! An interposer between a shard and its clients (the launcher and the router). It forwards all messages until a moment
//! that the test chooses, and then injects a fault.
//!
//! Entry point: [`Interposer::start`], to be called before the launcher is started. The interposer waits for the
//! shard's socket, renames it, and listens at its path. So the processes are the real ones and do not know of the
//! interposer. It decodes frames, because a fault is injected at a certain moment of the conversation.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use proto::{Command, Done, HEADER_BYTES, Reply, Row, command, frame, reply};
use rustix::process::Signal;

use crate::send_signal;

/// The mode that a shard gives its socket when clients may connect.
const READY_MODE: u32 = 0o600;
/// The time between two checks for the socket.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// The maximum number of attempts to connect to a socket.
const MAX_ATTEMPTS: usize = 1000;
/// Bytes that are not a frame, because the length in the header is above the limit.
const GARBAGE: [u8; 64] = [0xff; 64];
/// The number that is added to a sequence number or a fingerprint to make it wrong.
const OFFSET: u64 = 7;

/// A fault to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The shard's process gets a signal.
    Signal(Signal),
    /// The client's connection is closed, while the shard's process and the shard's connection to the interposer live
    /// on.
    Close,
    /// The client receives bytes that are not a frame.
    Garbage,
    /// A reply has a sequence number that is not that of the command.
    WrongNumber,
    /// A reply has a fingerprint that differs from that of the other shards.
    WrongFingerprint,
}

/// The moment at which a fault is injected. A signal is sent when the command arrives; other faults change or replace
/// the command's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The reply to Hello, for which the client waits while the model is loaded.
    Load,
    /// The reply to Warmup.
    WarmUp,
    /// The reply to a step that reads prompts.
    Prefill,
    /// The reply to a step that only decodes.
    Decode,
    /// A moment at which no command waits for its reply, or a command other than those above.
    Idle,
}

/// An interposer between one shard and its clients.
#[derive(Debug)]
pub struct Interposer {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    armed: Option<(Moment, Fault)>,
    /// The process id from the shard's reply to Hello.
    pid: Option<i32>,
    /// The client that connected last.
    client: Option<UnixStream>,
    /// The moment to which each command of the connection belongs, by sequence number.
    asked: HashMap<u64, Moment>,
    has_closed: bool,
}

/// Connects to a shard. The socket gets its mode a moment before the shard accepts connections, so several attempts may
/// be needed. Returns `None` if there is no connection.
fn connect(path: &Path) -> Option<UnixStream> {
    for _ in 0..MAX_ATTEMPTS {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::thread::park_timeout(LOOK_INTERVAL),
            connected => return connected.ok(),
        }
    }
    None
}

impl Interposer {
    /// Starts a thread that waits for the socket of the shard with the number `rank`, and then interposes itself.
    ///
    /// # Panics
    /// The thread panics when the socket cannot be replaced.
    pub fn start(uds_path: &Path, rank: u32) -> Self {
        let path = PathBuf::from(proto::socket_path(&uds_path.display().to_string(), rank));
        let state = State { armed: None, pid: None, client: None, asked: HashMap::new(), has_closed: false };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            let is_ready =
                |path: &Path| path.metadata().is_ok_and(|file| file.permissions().mode() & 0o777 == READY_MODE);
            while !is_ready(&path) {
                std::thread::park_timeout(LOOK_INTERVAL);
            }
            // There is a socket at the path at any moment, because the shard may look at it once more. A client that
            // was faster is connected to the shard itself; the router comes later.
            let [moved, own] = ["moved", "own"].map(|extension| path.with_extension(extension));
            std::fs::hard_link(&path, &moved).expect("the socket can get a second name");
            let listener = UnixListener::bind(&own).expect("a socket can be made beside it");
            std::fs::rename(&own, &path).expect("the socket can be replaced");
            for client in listener.incoming().flatten() {
                let Some(shard) = connect(&moved) else { return };
                // The error is ignored: the threads that forward frames notice when the client disconnects.
                let _ = pump_both(&shared, client, shard);
            }
        });
        Self { state }
    }

    /// Injects the fault at the next moment of this kind. All faults except a wrong fingerprint are injected once.
    pub fn arm(&self, moment: Moment, fault: Fault) {
        lock(&self.state).armed = Some((moment, fault));
    }

    /// Injects the fault now, while no command waits for its reply. A wrong fingerprint is injected into the reply to
    /// the next step that reads prompts.
    pub fn strike(&self, fault: Fault) {
        let mut state = lock(&self.state);
        match fault {
            Fault::Signal(signal) => state.signal(signal),
            Fault::Close => state.close(),
            Fault::Garbage => state.write(&GARBAGE),
            Fault::WrongNumber => {
                let reply = Reply { sequence_number: OFFSET, kind: Some(reply::Kind::Done(Done {})) };
                state.write(&encode(&reply));
            }
            Fault::WrongFingerprint => state.armed = Some((Moment::Prefill, fault)),
        }
    }
}

impl State {
    fn note(&mut self, command: &Command) {
        let moment = match &command.kind {
            Some(command::Kind::Hello(_)) => Moment::Load,
            Some(command::Kind::Warmup(_)) => Moment::WarmUp,
            Some(command::Kind::Step(step)) if step.rows.iter().all(Row::reads_sampled) => Moment::Decode,
            Some(command::Kind::Step(_)) => Moment::Prefill,
            Some(
                command::Kind::Info(_) | command::Kind::Fit(_) | command::Kind::Release(_) | command::Kind::Leave(_),
            )
            | None => Moment::Idle,
        };
        self.asked.insert(command.sequence_number, moment);
        if let Some((armed, Fault::Signal(signal))) = self.armed
            && armed == moment
        {
            self.armed = None;
            self.signal(signal);
        }
    }

    /// Forwards a reply to the client, or injects the fault if its moment has come.
    fn answer(&mut self, mut reply: Reply) {
        if let Some(reply::Kind::Hello(hello)) = &reply.kind {
            self.pid = i32::try_from(hello.pid).ok();
        }
        let moment = self.asked.get(&reply.sequence_number).copied();
        match self.armed.filter(|(armed, _)| Some(*armed) == moment) {
            None | Some((_, Fault::Signal(_))) => self.write(&encode(&reply)),
            Some((_, Fault::Close)) => {
                self.armed = None;
                self.close();
            }
            Some((_, Fault::Garbage)) => {
                self.armed = None;
                self.write(&GARBAGE);
            }
            Some((_, Fault::WrongNumber)) => {
                self.armed = None;
                reply.sequence_number += OFFSET;
                self.write(&encode(&reply));
            }
            Some((_, Fault::WrongFingerprint)) => {
                // The fault stays armed, so that every client sees the same fingerprint: the launcher sends Hello
                // before the router does.
                match &mut reply.kind {
                    Some(reply::Kind::Hello(hello)) => hello.config_hash += OFFSET,
                    Some(reply::Kind::Warmup(warmup)) => warmup.fingerprint = warmup.fingerprint.wrapping_add(OFFSET),
                    Some(reply::Kind::Step(step)) => step.fingerprint = step.fingerprint.wrapping_add(OFFSET),
                    Some(reply::Kind::StepDone(step)) => step.fingerprint = step.fingerprint.wrapping_add(OFFSET),
                    _ => {}
                }
                self.write(&encode(&reply));
            }
        }
    }

    fn signal(&self, signal: Signal) {
        send_signal(self.pid.expect("the shard has said hello"), signal);
    }

    fn close(&mut self) {
        self.has_closed = true;
        if let Some(client) = &self.client {
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        // A client that has disconnected needs no reply.
        let _ = self.client.as_mut().map(|client| client.write_all(bytes));
    }
}

/// Forwards frames in both directions, each on a thread, until one side disconnects.
fn pump_both(shared: &Arc<Mutex<State>>, client: UnixStream, shard: UnixStream) -> io::Result<()> {
    let (mut from_client, mut from_shard) = (client.try_clone()?, shard.try_clone()?);
    let this_client = client.try_clone()?;
    let mut to_shard = shard;
    {
        let mut state = lock(shared);
        state.client = Some(client);
        state.asked.clear();
    }
    let state = Arc::clone(shared);
    std::thread::spawn(move || {
        while let Ok((header, body)) = read_frame(&mut from_client) {
            lock(&state).note(&frame::decode(&body).expect("clients send commands"));
            if to_shard.write_all(&header).and_then(|()| to_shard.write_all(&body)).is_err() {
                return;
            }
        }
        // If the interposer has closed the client's connection, the shard must not notice, because the test is about
        // the reaction of the other processes.
        if !lock(&state).has_closed {
            let _ = to_shard.shutdown(Shutdown::Write);
        }
    });
    let state = Arc::clone(shared);
    std::thread::spawn(move || {
        while let Ok((_, body)) = read_frame(&mut from_shard) {
            lock(&state).answer(frame::decode(&body).expect("shards send replies"));
        }
        let _ = this_client.shutdown(Shutdown::Both);
    });
    Ok(())
}

fn read_frame(stream: &mut UnixStream) -> io::Result<([u8; HEADER_BYTES], Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let len = frame::body_len(header).map_err(io::Error::other)?;
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    Ok((header, body))
}

fn encode(reply: &Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(reply, &mut bytes).expect("replies fit into frames");
    bytes
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no test thread panics with the state")
}
