//! The events of a sequence, for its reader.
//!
//! `Failed`, `TimedOut` and a token with a finish reason are terminal: nothing follows them. Cancelling makes no event,
//! because the reader itself cancels.

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
    /// The sequence left the queue after `waited`. Its prompt is being read, except for the tokens in the prefix cache.
    Admitted { waited: Duration, num_prompt_tokens: u32, num_cached: u32 },
    /// A part of the report on the prompt that the sequence asked for.
    Prompt(PromptReport),
    /// The sequence grew by a token. With a reason, it was the last one.
    Token { token: SampledToken, finish: Option<TokenFinish> },
    /// The sequence failed.
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
