//! The events of a sequence, which the scheduler returns for the reader of the sequence.
//!
//! `Failed`, `TimedOut` and a token with a finish reason are terminal: nothing follows them. Cancelling a sequence
//! makes no event, and no event follows.

use std::time::Duration;

use proto::SampledToken;

use crate::{PromptReport, SequenceId, TokenFinish};

/// An event of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The sequence.
    pub id: SequenceId,
    /// The kind of event.
    pub kind: SequenceEvent,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq)]
pub enum SequenceEvent {
    /// The sequence left the queue for the first time, after `waited`. Its prompt is read from now on, except for the
    /// first `num_cached` tokens, which are in the prefix cache.
    Admitted { waited: Duration, num_prompt_tokens: u32, num_cached: u32 },
    /// A part of the report on the prompt (log-probabilities and top tokens) that the sequence asked for.
    Prompt(PromptReport),
    /// The sequence generated a token. If `finish` is not `None`, the token is the last one.
    Token { token: SampledToken, finish: Option<TokenFinish> },
    /// The sequence failed, for the reason in the message.
    Failed(String),
    /// The sequence's deadline has passed.
    TimedOut,
}

impl SequenceEvent {
    /// True if no event follows.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Admitted { .. } | Self::Prompt(_) | Self::Token { finish: None, .. } => false,
            Self::Token { finish: Some(_), .. } | Self::Failed(_) | Self::TimedOut => true,
        }
    }
}
