//! What the supervisor waits for: one bounded channel carries everything that happens to the launch. Lines of the log
//! are not among it: there may be any number of them, and a signal must not queue behind them.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender};

use router::Ready;

use crate::process::Exit;

/// Events held before the threads that report them wait for the supervisor.
const MAX_QUEUED_EVENTS: usize = 256;

/// Which child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChildId {
    Shard(u32),
    Router,
}

/// Something happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A child ended and was reaped.
    Exited(ChildId, Exit),
    /// A shard answered Hello: its weights are loaded.
    Ready(ChildId),
    /// A shard answered something else, or nothing in time.
    NotReady(ChildId, String),
    /// The router has opened its port.
    Serving(Ready),
    /// SIGINT, SIGTERM or SIGHUP.
    Stop,
}

/// The sender's and the supervisor's end.
pub(crate) fn channel() -> (SyncSender<Event>, Receiver<Event>) {
    std::sync::mpsc::sync_channel(MAX_QUEUED_EVENTS)
}

impl fmt::Display for ChildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shard(rank) => write!(f, "shard-{rank}"),
            Self::Router => f.write_str("router"),
        }
    }
}
