//! What happens to a sequence, for whoever reads it.
//!
//! `Failed`, `TimedOut` and a token with a finish reason are terminal: nothing follows them. Cancelling has no event,
//! because the reader itself did it.

use std::time::Duration;

use proto::SampledToken;

use crate::{PromptReport, SequenceId, TokenFinish};

/// Something happened to one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The sequence.
    pub id: SequenceId,
    /// Its news.
    pub kind: SequenceEvent,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum SequenceEvent {
    /// It left the queue, after this long in it, and its prompt is being read, but for the tokens that the prefix cache
    /// has.
    Admitted { waited: Duration, num_prompt_tokens: u32, num_cached: u32 },
    /// What it wants to know of its prompt, as far as that has been read.
    Prompt(PromptReport),
    /// It grew by a token; with a reason, that was the last one.
    Token { token: SampledToken, finish: Option<TokenFinish> },
    /// It cannot go on.
    Failed(String),
    /// Its deadline has passed.
    TimedOut,
}

impl SequenceEvent {
    /// Whether nothing follows it.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Admitted { .. } | Self::Prompt(_) | Self::Token { finish: None, .. } => false,
            Self::Token { finish: Some(_), .. } | Self::Failed(_) | Self::TimedOut => true,
        }
    }
}
