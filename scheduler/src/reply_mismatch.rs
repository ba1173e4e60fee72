//! The error for a reply that does not belong to its step.

/// The difference between a step and a reply that does not belong to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum ReplyMismatch {
    #[error("a step reply came without a step")]
    NoStep,
    #[error("a step reply has {got} rows, but {expected} were asked for")]
    NumRows { expected: usize, got: usize },
    #[error("a step reply names slot {got} where slot {expected} was expected")]
    Slot { expected: u32, got: u32 },
    #[error("a step reply has no token for slot {slot}")]
    NoToken { slot: u32 },
    #[error("a step reply has a token for slot {slot}, which asked for none")]
    UnwantedToken { slot: u32 },
    #[error("a step reply has {got} logprobs for slot {slot}, but {expected} were asked for")]
    NumLogprobs { slot: u32, expected: u32, got: usize },
    #[error("a step reply has top tokens for {got} tokens of slot {slot}, but {expected} were asked for")]
    NumTopTokens { slot: u32, expected: u32, got: usize },
}
