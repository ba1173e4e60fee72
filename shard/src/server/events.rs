//! The events that the main thread waits for, and the two threads that send them: one accepts clients, one loads the
//! model.
//!
//! Entry points: [`Event`], [`spawn_acceptor`], [`spawn_loader`], and [`Throttle`] for reports of progress. The queue
//! is bounded; a client that connects while it is full waits.

use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

use endpoint::{Listener, Stream};

use super::ServerError;
use crate::args::ShardArgs;
use crate::engine::{self, Engine, EngineError};

/// The time after which the next report of progress is due.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of events in the queue.
const EVENTS: usize = 16;

/// An event for the main thread.
pub(super) enum Event {
    Connected(Stream),
    Loading {
        phase: String,
        done: u64,
        total: u64,
    },
    Loaded(Box<Result<Engine, EngineError>>),
    /// The loader has ended, with or without a result.
    LoaderEnded,
}

/// Returns the queue of events.
pub(super) fn channel() -> (SyncSender<Event>, Receiver<Event>) {
    mpsc::sync_channel(EVENTS)
}

/// Starts the thread that accepts clients. The thread ends with the process, or with the first client after the
/// receiver of `events` was dropped.
pub(super) fn spawn_acceptor(listener: Listener, events: SyncSender<Event>) -> Result<(), ServerError> {
    let accept = move || {
        loop {
            match listener.accept() {
                Ok(stream) => {
                    if events.send(Event::Connected(stream)).is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!(%error, "a connection cannot be accepted"),
            }
        }
    };
    std::thread::Builder::new().name("accept".to_owned()).spawn(accept).map(drop).map_err(ServerError::Thread)
}

/// Starts the thread that loads the model. It sends reports of progress, the result, and [`Event::LoaderEnded`].
pub(super) fn spawn_loader(args: ShardArgs, events: SyncSender<Event>) -> Result<(), ServerError> {
    let load = move || {
        let ended = EndSender { events };
        let mut throttle = Throttle::default();
        let mut progress = |phase: &str, done: u64, total: u64| {
            if throttle.is_due(done == total) {
                telemetry::progress(phase, done, total);
                // If the queue is full, this report is lost.
                let _ = ended.events.try_send(Event::Loading { phase: phase.to_owned(), done, total });
            }
        };
        let result = engine::load(&args, &mut progress);
        let _ = ended.events.send(Event::Loaded(Box::new(result)));
    };
    std::thread::Builder::new().name("load".to_owned()).spawn(load).map(drop).map_err(ServerError::Thread)
}

/// Sends [`Event::LoaderEnded`] when it is dropped, which happens even if the loader panics.
struct EndSender {
    events: SyncSender<Event>,
}

impl Drop for EndSender {
    fn drop(&mut self) {
        let _ = self.events.send(Event::LoaderEnded);
    }
}

/// Decides which reports of progress are due.
#[derive(Default)]
pub(super) struct Throttle {
    last: Option<Instant>,
}

impl Throttle {
    /// True if a report is due; the last report always is. If so, the time until the next report starts again.
    pub(super) fn is_due(&mut self, is_last: bool) -> bool {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL);
        if is_due || is_last {
            self.last = Some(Instant::now());
        }
        is_due || is_last
    }
}
