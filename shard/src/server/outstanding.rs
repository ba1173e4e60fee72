//! The replies that are not sent yet, in the order of their commands.
//!
//! Entry point: [`Outstanding`]. A step that was launched is replied to when the device has finished it. Replies to
//! later commands wait until then.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use proto::reply;

use super::Identity;
use super::conversation::{CommandError, step_reply};
use crate::engine::{DeviceClock, LaunchedStep};

/// The maximum number of steps that are launched and not replied to. While the device computes one, the next waits on
/// it, which keeps the device busy. More would make new requests wait longer.
const MAX_STEPS: usize = 2;

/// The replies that are not sent yet.
pub(super) struct Outstanding {
    identity: Identity,
    clock: DeviceClock,
    /// Sequence numbers with their replies.
    replies: VecDeque<(u64, Outcome)>,
}

/// The reply to one command.
pub(super) enum Outcome {
    Known(Result<reply::Kind, CommandError>),
    /// The reply follows from the results of a step.
    Step(Box<LaunchedStep>),
}

impl Outstanding {
    /// Returns the list without replies. `identity` decides what the reply to a step contains.
    pub(super) fn new(identity: Identity) -> Self {
        Self { identity, clock: DeviceClock::default(), replies: VecDeque::new() }
    }

    /// True if every command was replied to.
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// True if no further command may be carried out before a step ends.
    pub(super) fn is_full(&self) -> bool {
        let is_step = |(_, outcome): &&(u64, Outcome)| matches!(outcome, Outcome::Step(_));
        self.replies.iter().filter(is_step).count() >= MAX_STEPS
    }

    /// Adds the reply to the command `sequence_number`, which is later than all others.
    pub(super) fn push(&mut self, sequence_number: u64, outcome: Outcome) {
        self.replies.push_back((sequence_number, outcome));
    }

    /// Takes the oldest reply, if it is known. If the oldest command is a step under way, `waker` is woken when the
    /// step may have ended.
    pub(super) fn pop(&mut self, waker: &Waker) -> Option<(u64, Result<reply::Kind, CommandError>)> {
        let (_, outcome) = self.replies.front_mut()?;
        if let Outcome::Step(step) = outcome {
            let Poll::Ready(result) = step.poll(&mut self.clock, &mut Context::from_waker(waker)) else { return None };
            *outcome = Outcome::Known(step_reply(result, self.identity));
        }
        match self.replies.pop_front()? {
            (sequence_number, Outcome::Known(result)) => Some((sequence_number, result)),
            (_, Outcome::Step(_)) => None,
        }
    }
}
