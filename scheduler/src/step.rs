//! A step: the commands for the shards, and the check of their reply.
//!
//! A reply is compared with its step before any part of it is used, so a reply that does not match changes nothing.

use proto::{Row, RowReply, StepReply, command};

use crate::Event;
use crate::pace::Work;
use crate::reply_mismatch::ReplyMismatch;
use crate::slot::{Admission, SlotId};
use crate::wants::ExpectedReport;

/// One step: the slots to release, the rows to run, and the events of sequences that were admitted or timed out.
#[derive(Debug, Default)]
pub struct Step {
    /// Slots that sequences have left. They are sent to the shards before the rows, because rows may reuse the slots.
    pub(crate) releases: Vec<SlotId>,
    /// First the rows that read the token that they sampled in an earlier step, then the rows that read given tokens.
    pub rows: Vec<Row>,
    /// The events of sequences that were admitted or timed out.
    pub events: Vec<Event>,
    /// The number of sequences that went back to the queue because a running sequence lacked a block.
    pub num_preempted: u32,
    /// The number of sequences that went back to the queue because their tenant had more than its share of the slots.
    pub num_displaced: u32,
    /// The work of the rows.
    pub work: Work,
    pub(crate) outstanding: Outstanding,
}

/// The main work of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The step reads prompts, and may also generate tokens.
    Prefill,
    /// The step only generates tokens.
    Decode,
}

/// The expected contents of the reply for a row that asks for a token or a report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) slot: SlotId,
    pub(crate) admission: Admission,
    pub(crate) wants_token: bool,
    pub(crate) report: Option<ExpectedReport>,
}

/// The expected contents of the reply to a step, in the order of its rows.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    pub(crate) rows: Vec<Expected>,
}

impl Step {
    /// Creates an empty step with capacity for `num_rows` rows.
    pub(crate) fn with_capacity(num_rows: usize) -> Self {
        let outstanding = Outstanding { rows: Vec::with_capacity(num_rows) };
        Self { rows: Vec::with_capacity(num_rows), outstanding, ..Self::default() }
    }

    /// Adds a row. If the row asks for a token or a report, also adds `expected` to the expected reply.
    pub(crate) fn push(&mut self, row: Row, expected: Expected) {
        self.rows.push(row);
        if expected.wants_token || expected.report.is_some() {
            self.outstanding.rows.push(expected);
        }
    }

    /// The main work of the step; `None` if the step has no rows.
    pub fn phase(&self) -> Option<Phase> {
        let last = self.rows.last()?;
        Some(if last.reads_sampled() { Phase::Decode } else { Phase::Prefill })
    }

    /// The number of rows that read the token that they sampled in an earlier step.
    pub fn num_decoding(&self) -> usize {
        self.rows.partition_point(Row::reads_sampled)
    }

    /// The number of tokens that the shards read in this step.
    pub fn num_tokens(&self) -> usize {
        let num_decoding = self.num_decoding();
        num_decoding + self.rows[num_decoding..].iter().map(Row::num_tokens).sum::<usize>()
    }

    /// Returns the commands for the shards, in order.
    pub fn into_commands(self) -> Vec<command::Kind> {
        let slots: Vec<u32> = self.releases.iter().map(|slot| slot.0).collect();
        let release = (!slots.is_empty()).then_some(command::Kind::Release(proto::Release { slots }));
        let step = (!self.rows.is_empty()).then_some(command::Kind::Step(proto::Step { rows: self.rows }));
        release.into_iter().chain(step).collect()
    }
}

impl Outstanding {
    /// # Errors
    /// When `reply` does not match this step.
    pub(crate) fn check(&self, reply: &StepReply) -> Result<(), ReplyMismatch> {
        let (expected, got) = (self.rows.len(), reply.rows.len());
        if got != expected {
            return Err(ReplyMismatch::NumRows { expected, got });
        }
        self.rows.iter().zip(&reply.rows).try_for_each(|(expected, reply)| expected.check(reply))
    }
}

impl Expected {
    fn check(&self, reply: &RowReply) -> Result<(), ReplyMismatch> {
        let slot = reply.slot;
        if self.slot.0 != slot {
            return Err(ReplyMismatch::Slot { expected: self.slot.0, got: slot });
        }
        if reply.failure.is_some() {
            return Ok(());
        }
        match (self.wants_token, reply.token.is_some()) {
            (true, false) => return Err(ReplyMismatch::NoToken { slot }),
            (false, true) => return Err(ReplyMismatch::UnwantedToken { slot }),
            (true, true) | (false, false) => {}
        }
        ExpectedReport::check(self.report.as_ref(), reply)
    }
}
