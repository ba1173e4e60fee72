//! The shard's signs of life. A thread of their own sends them, so that a client tells a shard that computes, or waits
//! for commands, from one that hangs.
//!
//! Entry point: [`Beats::start`].

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};

use backend::Pulse;
use liveness::BEAT_INTERVAL;
use proto::{Beat, reply};

use super::connection::Sender;

/// The sequence number of beats, which belong to no command.
const NO_COMMAND: u64 = 0;

/// The beats to one client. They end when this value is dropped.
pub(super) struct Beats {
    _stop: SyncSender<()>,
}

impl Beats {
    /// Starts to send beats with the count of `pulse`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(sender: Sender, pulse: Pulse) -> io::Result<Self> {
        let (stop, stopped) = mpsc::sync_channel(0);
        let beat = move || {
            while stopped.recv_timeout(BEAT_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let beat = reply::Kind::Beat(Beat { progress: pulse.count() });
                // The main thread notices by itself that its client is gone.
                if sender.reply(NO_COMMAND, beat).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("beat".to_owned()).spawn(beat)?;
        Ok(Self { _stop: stop })
    }
}
