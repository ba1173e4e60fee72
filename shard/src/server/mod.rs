//! The socket: listens before the model is loaded, answers commands one at a time, and ends with its client.
//!
//! Door: [`run`]. Three threads: one accepts, one loads the model, and the main one takes their events one at a time and
//! talks to the client. Everything it does to the model it does through [`Engine`].
//!
//! ```text
//! bind ──▶ accept ─┐
//!          load ───┴─▶ Hello … HelloReply ──▶ Warmup, steps ──▶ Leave: exit 0
//!                                         └─▶ client gone before Warmup: wait for the next one
//! ```

mod connection;
mod socket;

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

use proto::shard_error::Kind;
use proto::{Command, Done, Hello, HelloReply, PROTOCOL_VERSION, Progress, ShardError, command, reply};

use crate::args::ShardArgs;
use crate::engine::{self, Engine, EngineError};
use connection::{Connection, ConnectionError};
pub(crate) use socket::SocketError;
use socket::SocketFile;

/// The first command of a connection must be there by then.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);
/// Least time between two progress replies.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Events that may wait: the loader's, and a few clients.
const EVENTS: usize = 16;

/// Why a shard ended other than by `Leave`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("start a thread: {0}")]
    Thread(std::io::Error),
    #[error("load the model: {0}")]
    Load(Box<EngineError>),
    #[error("the thread that loads the model panicked")]
    LoaderPanicked,
    #[error("router is gone: {0}")]
    RouterGone(ConnectionError),
    #[error("device failed: {0}")]
    Device(Box<EngineError>),
}

/// What the main thread waits for.
enum Event {
    Connected(UnixStream),
    Loading {
        phase: String,
        done: u64,
        total: u64,
    },
    Loaded(Box<Result<Engine, EngineError>>),
    /// The loader is gone without a result.
    LoaderEnded,
}

/// How the conversation with one client ended.
enum Ended {
    /// It said so.
    Left,
    /// It went away before warm-up: somebody else may come.
    GoneBeforeWarmup,
}

/// Who this shard is among its peers.
struct Identity {
    rank: u32,
    world_size: u32,
}

/// Serves until the client leaves.
///
/// # Errors
/// When the socket cannot be made, the model cannot be loaded, or the client is gone after warm-up.
pub(crate) fn run(args: &ShardArgs) -> Result<(), ServerError> {
    let (socket_file, listener) = SocketFile::bind(&args.uds_path)?;
    tracing::info!(path = %args.uds_path.display(), "listening");
    let (events_tx, events_rx) = mpsc::sync_channel(EVENTS);
    spawn_acceptor(listener, events_tx.clone())?;
    spawn_loader(args.clone(), events_tx)?;
    let mut server = Server {
        identity: Identity { rank: args.rank, world_size: args.world_size },
        events: events_rx,
        engine: None,
        progress: Progress { phase: "start".to_owned(), done: 0, total: 1 },
    };
    let result = server.serve();
    drop(socket_file);
    result
}

fn spawn_acceptor(listener: std::os::unix::net::UnixListener, events: SyncSender<Event>) -> Result<(), ServerError> {
    let accept = move || {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => {
                    if events.send(Event::Connected(stream)).is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!(%error, "accept a connection"),
            }
        }
    };
    std::thread::Builder::new().name("accept".to_owned()).spawn(accept).map(drop).map_err(ServerError::Thread)
}

fn spawn_loader(args: ShardArgs, events: SyncSender<Event>) -> Result<(), ServerError> {
    let load = move || {
        let ended = EndSender { events };
        let mut throttle = Throttle::default();
        let mut progress = |phase: &str, done: u64, total: u64| {
            if throttle.lets_pass(done == total) {
                telemetry::progress(phase, done, total);
                // A full queue loses an intermediate figure, nothing else.
                let _ = ended.events.try_send(Event::Loading { phase: phase.to_owned(), done, total });
            }
        };
        let result = engine::load(&args, &mut progress);
        let _ = ended.events.send(Event::Loaded(Box::new(result)));
    };
    std::thread::Builder::new().name("load".to_owned()).spawn(load).map(drop).map_err(ServerError::Thread)
}

/// Tells the main thread that the loader has ended, even if it panicked.
struct EndSender {
    events: SyncSender<Event>,
}

impl Drop for EndSender {
    fn drop(&mut self) {
        let _ = self.events.send(Event::LoaderEnded);
    }
}

/// Lets few of many reports pass.
#[derive(Default)]
struct Throttle {
    last: Option<Instant>,
}

impl Throttle {
    fn lets_pass(&mut self, is_last: bool) -> bool {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL);
        if is_due || is_last {
            self.last = Some(Instant::now());
        }
        is_due || is_last
    }
}

struct Server {
    identity: Identity,
    events: Receiver<Event>,
    /// `None` while the model is being loaded.
    engine: Option<Engine>,
    progress: Progress,
}

impl Server {
    fn serve(&mut self) -> Result<(), ServerError> {
        loop {
            // A client may take any time to come; a loader that fails is an event too.
            let event = self.events.recv().map_err(|_| ServerError::LoaderPanicked)?;
            let Some(stream) = self.note(event)? else { continue };
            match self.talk(&mut Connection::new(stream)) {
                Ok(Ended::Left) => return Ok(()),
                Ok(Ended::GoneBeforeWarmup) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes note of an event; a connection is handed back.
    fn note(&mut self, event: Event) -> Result<Option<UnixStream>, ServerError> {
        match event {
            Event::Connected(stream) => return Ok(Some(stream)),
            Event::Loading { phase, done, total } => self.progress = Progress { phase, done, total },
            Event::Loaded(result) => {
                let engine = (*result).map_err(|error| ServerError::Load(Box::new(error)))?;
                let info = engine.info();
                tracing::info!(
                    architecture = info.architecture,
                    dtype = info.dtype,
                    device = info.device,
                    num_parameters = info.num_parameters,
                    weights_bytes = info.weights_bytes,
                    "model loaded"
                );
                self.engine = Some(engine);
            }
            Event::LoaderEnded if self.engine.is_none() => return Err(ServerError::LoaderPanicked),
            Event::LoaderEnded => {}
        }
        Ok(None)
    }

    fn talk(&mut self, connection: &mut Connection) -> Result<Ended, ServerError> {
        let greeted = match self.greet(connection)? {
            Ok(greeted) => greeted,
            Err(error) => {
                tracing::debug!(%error, "client went away before Hello was answered");
                return Ok(Ended::GoneBeforeWarmup);
            }
        };
        let Some(engine) = self.engine.as_mut().filter(|_| greeted) else {
            return Ok(Ended::GoneBeforeWarmup);
        };
        match converse(connection, engine) {
            Ok(()) => Ok(Ended::Left),
            Err(ConverseError::Connection(error)) if engine.is_warm() => Err(ServerError::RouterGone(error)),
            Err(ConverseError::Connection(error)) => {
                tracing::debug!(%error, "client went away before warm-up");
                Ok(Ended::GoneBeforeWarmup)
            }
            Err(ConverseError::Device(error)) => Err(ServerError::Device(error)),
        }
    }

    /// Answers Hello once the model is loaded. The inner result is false when the client was turned away.
    fn greet(&mut self, connection: &mut Connection) -> Result<Result<bool, ConnectionError>, ServerError> {
        let hello = match connection.read_before(HELLO_DEADLINE) {
            Ok(command) => command,
            Err(error) => return Ok(Err(error)),
        };
        let sequence_number = hello.sequence_number;
        if let Some(error) = refusal(&hello) {
            return Ok(connection.reply(sequence_number, reply::Kind::Error(error)).map(|()| false));
        }
        while self.engine.is_none() {
            if let Err(error) = connection.reply(sequence_number, reply::Kind::Progress(self.progress.clone())) {
                return Ok(Err(error));
            }
            if let Err(error) = self.wait_for_loader() {
                if let ServerError::Load(error) = &error {
                    let _ = connection.reply(sequence_number, reply::Kind::Error(error.as_ref().into()));
                }
                return Err(error);
            }
        }
        let hello = HelloReply {
            protocol_version: PROTOCOL_VERSION,
            rank: self.identity.rank,
            world_size: self.identity.world_size,
            config_hash: self.engine.as_ref().map_or(0, Engine::config_hash),
            pid: std::process::id(),
        };
        Ok(connection.reply(sequence_number, reply::Kind::Hello(hello)).map(|()| true))
    }

    fn wait_for_loader(&mut self) -> Result<(), ServerError> {
        let Ok(event) = self.events.recv_timeout(PROGRESS_INTERVAL) else {
            return Ok(());
        };
        if let Some(_second_client) = self.note(event)? {
            tracing::debug!("a second client was turned away: one at a time");
        }
        Ok(())
    }
}

/// Why the conversation broke off.
enum ConverseError {
    Connection(ConnectionError),
    Device(Box<EngineError>),
}

/// Answers commands until `Leave`.
fn converse(connection: &mut Connection, engine: &mut Engine) -> Result<(), ConverseError> {
    loop {
        let command = connection.read().map_err(ConverseError::Connection)?;
        let sequence_number = command.sequence_number;
        let mut reply = |kind| connection.reply(sequence_number, kind).map_err(ConverseError::Connection);
        let outcome = match command.kind {
            Some(command::Kind::Leave(_)) => return reply(reply::Kind::Done(Done {})),
            Some(command::Kind::Info(_)) => Ok(reply::Kind::Info(engine.info().clone())),
            Some(command::Kind::Warmup(warmup)) => {
                let mut throttle = Throttle::default();
                let mut progress = |phase: &str, done: u64, total: u64| {
                    if throttle.lets_pass(done == total) {
                        telemetry::progress(phase, done, total);
                        // A client that is gone is noticed at the next read.
                        let _ = reply(reply::Kind::Progress(Progress { phase: phase.to_owned(), done, total }));
                    }
                };
                engine.warmup(&warmup, &mut progress).map(reply::Kind::Warmup)
            }
            Some(command::Kind::Prefill(prefill)) => engine.prefill(&prefill).map(reply::Kind::Step),
            Some(command::Kind::Decode(decode)) => engine.decode(&decode).map(reply::Kind::Step),
            Some(command::Kind::Release(release)) => engine.release(&release).map(|()| reply::Kind::Done(Done {})),
            Some(command::Kind::Hello(_)) => {
                reply(reply::Kind::Error(ShardError::new(Kind::Protocol, "hello was said already")))?;
                continue;
            }
            None => {
                reply(reply::Kind::Error(ShardError::new(Kind::Protocol, "command of an unknown kind")))?;
                continue;
            }
        };
        match outcome {
            Ok(kind) => reply(kind)?,
            Err(error) => {
                reply(reply::Kind::Error(ShardError::from(&error)))?;
                tracing::warn!(%error, sequence_number, "command failed");
                // Rows whose step broke off are in no known state.
                if error.leaves_rows_unknown() {
                    return Err(ConverseError::Device(Box::new(error)));
                }
            }
        }
    }
}

/// What is wrong with the first command, if anything.
fn refusal(command: &Command) -> Option<ShardError> {
    match &command.kind {
        Some(command::Kind::Hello(Hello { protocol_version })) if *protocol_version == PROTOCOL_VERSION => None,
        Some(command::Kind::Hello(Hello { protocol_version })) => Some(ShardError::new(
            Kind::Version,
            format!("protocol version is {protocol_version}, this shard speaks {PROTOCOL_VERSION}"),
        )),
        Some(
            command::Kind::Info(_)
            | command::Kind::Warmup(_)
            | command::Kind::Prefill(_)
            | command::Kind::Decode(_)
            | command::Kind::Release(_)
            | command::Kind::Leave(_),
        )
        | None => Some(ShardError::new(Kind::Protocol, "the first command must be hello")),
    }
}
