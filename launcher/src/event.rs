//! The events of a launch. One bounded channel carries all of them to the supervisor. Log lines do not go through it:
//! there may be any number of them, and a signal must not queue after them.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender};

use router::Ready;

use crate::exit::Exit;

/// The events held before the threads that send them must wait for the supervisor.
const MAX_QUEUED_EVENTS: usize = 256;

/// The name of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChildId {
    Shard(u32),
    Router,
}

/// An event of the launch.
#[derive(Debug)]
pub(crate) enum Event {
    /// A child ended. It has not been reaped.
    Exited(ChildId, Exit),
    /// A shard replied to Hello: its weights are loaded.
    Ready(ChildId),
    /// A shard sent something else, or nothing in time.
    NotReady(ChildId, String),
    /// The router has opened its port.
    Serving(Ready),
    /// SIGINT, SIGTERM or SIGHUP.
    Stop,
}

/// The two ends of a channel for events.
pub(crate) fn channel() -> (SyncSender<Event>, Receiver<Event>) {
    std::sync::mpsc::sync_channel(MAX_QUEUED_EVENTS)
}

impl fmt::Display for ChildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shard(shard) => write!(f, "shard-{shard}"),
            Self::Router => f.write_str("router"),
        }
    }
}
