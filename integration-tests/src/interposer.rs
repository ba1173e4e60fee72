//! Somebody between a shard and those who talk to it: passes everything on until the moment a test chose, then does harm.
//!
//! Door: [`Interposer::start`], before the launcher is started. It waits for the shard's socket, moves it aside and listens in
//! its place, so the processes are the real ones and know nothing of it. It understands frames, because harm comes at a moment
//! of the conversation.

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

/// A shard's socket gets this mode when it is ready to be connected to.
const READY_MODE: u32 = 0o600;
/// Between two looks for the socket.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Looks for somebody who takes connections.
const MAX_ATTEMPTS: usize = 1000;
/// Bytes that are no frame: the length is beyond all bounds.
const GARBAGE: [u8; 64] = [0xff; 64];
/// Added to what should be right.
const OFFSET: u64 = 7;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process gets a signal.
    Signal(Signal),
    /// The shard's end of the connection is closed, and the process lives on.
    Close,
    /// Bytes that are no frame.
    Garbage,
    /// The answer to a command that was not asked.
    WrongNumber,
    /// Another program was run than the other ranks have.
    WrongFingerprint,
}

/// When it goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The model is being loaded: the answer to Hello.
    Load,
    /// The answer to Warmup.
    WarmUp,
    /// The answer to a step that reads prompts.
    Prefill,
    /// The answer to a step that only makes tokens.
    Decode,
    /// Nothing is asked.
    Idle,
}

/// Sits between one shard and its clients.
#[derive(Debug)]
pub struct Interposer {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    armed: Option<(Moment, Fault)>,
    /// The shard's process id, as it said itself.
    pid: Option<i32>,
    /// The latest client.
    client: Option<UnixStream>,
    /// What the numbers of its commands stand for.
    asked: HashMap<u64, Moment>,
    has_closed: bool,
}

/// Connects to a shard. Its socket has its mode a moment before it takes connections.
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
    /// Waits, on a thread, for the socket of this rank.
    ///
    /// # Panics
    /// When the socket cannot be moved or replaced.
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
            // The shard looks at its own file once more.
            std::thread::park_timeout(5 * LOOK_INTERVAL);
            let moved = path.with_extension("moved");
            std::fs::rename(&path, &moved).expect("the socket can be moved");
            let listener = UnixListener::bind(&path).expect("the socket can be replaced");
            for client in listener.incoming().flatten() {
                let Some(shard) = connect(&moved) else { return };
                // A client's end is noticed by the pumps.
                let _ = pump_both(&shared, client, shard);
            }
        });
        Self { state }
    }

    /// Does harm once, at the next such moment.
    pub fn arm(&self, moment: Moment, fault: Fault) {
        lock(&self.state).armed = Some((moment, fault));
    }

    /// Does harm now, while nothing is asked. What needs an answer to be wrong waits for the next one.
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

    /// Passes a reply on, or does the harm that is due.
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
                // Everybody who asks is told the same: the launcher asks before the router does.
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
        // A client that is gone needs no answer.
        let _ = self.client.as_mut().map(|client| client.write_all(bytes));
    }
}

/// Passes frames on in both directions, each on a thread, until an end is gone.
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
        // A shard whose connection was closed under it hears nothing: it is the others that must act.
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
