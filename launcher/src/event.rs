//! The events of a launch. One bounded channel carries all of them to the supervisor. Log lines do not go through this
//! channel: there may be any number of them, and a signal must not queue after them.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender};

use router::Ready;

use crate::exit::Exit;
use crate::hosts::News;

/// The maximum number of queued events. At this limit, the threads that send events wait for the supervisor.
const MAX_QUEUED_EVENTS: usize = 256;

/// The name of a child. Shards are numbered from 0.
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
    /// A shard cannot become ready, for the reason in the text: it does not listen or respond in time, reports an
    /// error, or sends something other than the reply to Hello.
    NotReady(ChildId, String),
    /// A child gives no sign of life, although it has not ended.
    Silent(ChildId),
    /// The router has opened its port.
    Serving(Ready),
    /// The launcher received SIGINT, SIGTERM or SIGHUP.
    Stop,
    /// News of another host of the slice, by its index.
    Host(usize, News),
}

/// Creates the channel for events, and returns its sender and receiver.
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
