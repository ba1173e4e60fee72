//! The server of a shard: listens before the model is loaded, carries out commands one at a time, replies in their
//! order, and ends when its client leaves.
//!
//! Entry point: [`run`]. One thread accepts clients, one loads the model (`events`), and the main thread handles their
//! events one at a time and talks to the client (`conversation`). During warm-up another thread uses the engine. From
//! the reply to Hello on, a thread sends signs of life (`beats`). The model is accessed only through [`Engine`].
//!
//! ```text
//! bind ──▶ accept ─┐
//!          load ───┴─▶ Hello … HelloReply ──▶ Warmup, steps ──▶ Leave: exit 0
//!                                         └─▶ client gone before Warmup: wait for the next one
//! ```

mod beats;
mod connection;
mod conversation;
mod events;
mod outstanding;
#[cfg(test)]
mod tests;
mod wakeup;

use std::sync::mpsc::Receiver;
use std::time::Duration;

use build_id::BuildId;
use endpoint::{ListenError, Stream};
use proto::{HelloReply, PROTOCOL_VERSION, Progress, exit_status, reply};

use crate::args::ShardArgs;
use crate::engine::{Engine, EngineError};
use connection::{Connection, ConnectionError};
use events::Event;

/// The deadline for the first command of a connection.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);

/// The error that ended a shard without `Leave`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("a thread cannot be started: {0}")]
    Thread(std::io::Error),
    #[error("the model cannot be loaded: {0}")]
    Load(Box<EngineError>),
    #[error("the thread that loads the model panicked, which is a defect of this server")]
    LoaderPanicked,
    #[error("the router is gone: {0}")]
    RouterGone(ConnectionError),
    #[error("the device failed: {0}")]
    Device(Box<EngineError>),
}

impl ServerError {
    /// Returns the exit status of the process.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Load(error) | Self::Device(error) => error.exit_status(),
            Self::LoaderPanicked => exit_status::DEVICE,
            Self::Listen(ListenError::NotLoopback { .. }) => exit_status::CONFIGURATION,
            Self::Listen(_) | Self::Thread(_) | Self::RouterGone(_) => exit_status::FAILURE,
        }
    }
}

/// The way in which the conversation with one client ended.
enum Ended {
    /// The client sent `Leave`.
    Left,
    /// The first command was refused: another client may connect.
    Refused,
}

/// The reason why the conversation with one client broke off.
enum Interruption {
    Client(ConnectionError),
    Shard(ServerError),
}

/// The index of this shard, and the number of shards of the model.
#[derive(Clone, Copy)]
struct Identity {
    shard: u32,
    num_shards: u32,
}

/// Serves until the client leaves.
///
/// # Errors
/// When the shard ends without `Leave`: for example, the model cannot be loaded, the device fails, or the client is
/// gone after warm-up.
pub(crate) fn run(args: &ShardArgs) -> Result<(), ServerError> {
    let (listener, socket_file) = args.uds_path.bind_private()?;
    tracing::info!(address = %args.uds_path, "listening");
    let (events_tx, events_rx) = events::channel();
    events::spawn_acceptor(listener, events_tx.clone())?;
    events::spawn_loader(args.clone(), events_tx)?;
    let mut server = Server {
        identity: Identity { shard: args.shard, num_shards: args.num_shards },
        events: events_rx,
        engine: None,
        progress: Progress { phase: "start".to_owned(), done: 0, total: 1 },
    };
    let result = server.serve();
    drop(socket_file);
    result
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
            // No deadline is needed: a client may connect at any time, and a loader that fails sends an event too.
            let event = self.events.recv().map_err(|_| ServerError::LoaderPanicked)?;
            let Some(stream) = self.note(event)? else { continue };
            let talked = Connection::new(stream).map_err(|error| Interruption::Client(error.into()));
            match talked.and_then(|mut connection| self.talk(&mut connection)) {
                Ok(Ended::Left) => return Ok(()),
                Ok(Ended::Refused) => {}
                Err(Interruption::Shard(error)) => return Err(error),
                Err(Interruption::Client(error)) if self.engine.as_ref().is_some_and(Engine::is_warm) => {
                    return Err(ServerError::RouterGone(error));
                }
                Err(Interruption::Client(error)) => tracing::debug!(%error, "the client went away before warm-up"),
            }
        }
    }

    /// Handles an event; a new connection is returned.
    fn note(&mut self, event: Event) -> Result<Option<Stream>, ServerError> {
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

    fn talk(&mut self, connection: &mut Connection) -> Result<Ended, Interruption> {
        let hello = connection.read_before(HELLO_DEADLINE)?;
        let sequence_number = hello.sequence_number;
        if let Some(error) = conversation::refusal(&hello, BuildId::of_process()) {
            connection.reply(sequence_number, reply::Kind::Error(error))?;
            return Ok(Ended::Refused);
        }
        let identity = self.identity;
        let Identity { shard, num_shards } = identity;
        let engine = self.loaded_engine(connection, sequence_number)?;
        let hello = HelloReply {
            protocol_version: PROTOCOL_VERSION,
            shard,
            num_shards,
            config_hash: engine.config_hash(),
            pid: std::process::id(),
            devices: engine.devices(),
        };
        connection.reply(sequence_number, reply::Kind::Hello(hello))?;
        conversation::converse(connection, engine, identity, sequence_number)?;
        Ok(Ended::Left)
    }

    /// Returns the engine once the model is loaded. Until then, reports of progress are sent to the client.
    fn loaded_engine(
        &mut self,
        connection: &mut Connection,
        sequence_number: u64,
    ) -> Result<&mut Engine, Interruption> {
        while self.engine.is_none() {
            connection.reply(sequence_number, reply::Kind::Progress(self.progress.clone()))?;
            let Ok(event) = self.events.recv_timeout(events::PROGRESS_INTERVAL) else { continue };
            match self.note(event) {
                Ok(None) => {}
                Ok(Some(_second_client)) => tracing::debug!("a second client is refused while another is connected"),
                Err(error) => {
                    if let ServerError::Load(error) = &error {
                        // The error ends this process in any case; telling the client is a courtesy.
                        let _ = connection.reply(sequence_number, reply::Kind::Error(error.as_ref().into()));
                    }
                    return Err(Interruption::Shard(error));
                }
            }
        }
        Ok(self.engine.as_mut().expect("the loop ends with an engine"))
    }
}

impl From<ConnectionError> for Interruption {
    fn from(error: ConnectionError) -> Self {
        Self::Client(error)
    }
}
