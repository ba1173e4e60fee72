//! What happens to a sequence, for whoever reads it.
//!
//! `Failed` and a token with a finish reason are terminal: nothing follows them. Cancelling has no event, because
//! the reader itself did it.

use std::time::Duration;

use proto::SampledToken;

use super::{FinishReason, SequenceId};

/// Something happened to one sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: SequenceId,
    pub(crate) kind: SequenceEvent,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SequenceEvent {
    /// It left the queue, after this long in it, and its prompt is being read.
    Admitted { waited: Duration },
    /// Log-probabilities of the next tokens of its prompt; not-a-number for the very first.
    PromptLogprobs(Vec<f32>),
    /// It grew by a token; with a reason, that was the last one.
    Token { token: SampledToken, finish: Option<FinishReason> },
    /// It cannot go on.
    Failed(String),
}
