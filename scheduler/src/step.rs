//! A step: the commands for the shards, and the check of their reply.
//!
//! A reply is compared with its step before anything is taken from it, so a reply that does not match changes nothing.

use proto::{Row, RowReply, StepReply, command};

use crate::Event;
use crate::rows::SlotId;
use crate::running::Admission;
use crate::wants::ExpectedReport;

/// One step.
#[derive(Debug, Default)]
pub struct Step {
    /// Slots whose rows have ended. The shards get these before the rows, which may reuse the slots.
    pub(crate) releases: Vec<SlotId>,
    /// First the rows that read the token they sampled, then those that read parts of prompts.
    pub rows: Vec<Row>,
    /// The events of sequences that were admitted or timed out.
    pub events: Vec<Event>,
    /// The number of sequences that went back to the queue because there were no blocks for them.
    pub num_preempted: u32,
    /// The number of sequences that went back to the queue because their tenant had more than its share of the slots.
    pub num_displaced: u32,
    pub(crate) outstanding: Outstanding,
}

/// The main work of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It reads prompts, and may also make tokens.
    Prefill,
    /// The step only makes tokens.
    Decode,
}

/// The difference between a step and a reply that does not belong to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum ReplyMismatch {
    #[error("a step reply came without a step")]
    NoStep,
    #[error("a step reply has {got} rows, {expected} were asked for")]
    NumRows { expected: usize, got: usize },
    #[error("a step reply names slot {got} where slot {expected} was expected")]
    Slot { expected: u32, got: u32 },
    #[error("a step reply has no token for slot {slot}")]
    NoToken { slot: u32 },
    #[error("a step reply has a token for slot {slot}, which asked for none")]
    UnwantedToken { slot: u32 },
    #[error("a step reply has {got} logprobs for slot {slot}, {expected} were asked for")]
    NumLogprobs { slot: u32, expected: u32, got: usize },
    #[error("a step reply has top tokens for {got} tokens of slot {slot}, {expected} were asked for")]
    NumTopTokens { slot: u32, expected: u32, got: usize },
}

/// A row from which the reply must have something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) slot: SlotId,
    pub(crate) admission: Admission,
    pub(crate) wants_token: bool,
    pub(crate) report: Option<ExpectedReport>,
}

/// The contents that the reply to a step must have, in order.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    pub(crate) rows: Vec<Expected>,
}

impl Step {
    /// An empty step with room for `num_rows` rows.
    pub(crate) fn with_capacity(num_rows: usize) -> Self {
        let outstanding = Outstanding { rows: Vec::with_capacity(num_rows) };
        Self { rows: Vec::with_capacity(num_rows), outstanding, ..Self::default() }
    }

    /// Adds a row, and its wants to the expected reply.
    pub(crate) fn push(&mut self, row: Row, expected: Expected) {
        self.rows.push(row);
        if expected.wants_token || expected.report.is_some() {
            self.outstanding.rows.push(expected);
        }
    }

    /// The main work of the step; `None` if it only releases slots.
    pub fn phase(&self) -> Option<Phase> {
        let last = self.rows.last()?;
        Some(if last.reads_sampled() { Phase::Decode } else { Phase::Prefill })
    }

    /// The number of rows that read the token which they sampled in the step before.
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
