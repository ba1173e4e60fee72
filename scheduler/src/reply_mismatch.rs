//! The error for a reply that does not belong to its step.

/// The difference between a step and a reply that does not belong to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum ReplyMismatch {
    #[error("the shards sent the reply to a step that was not sent to them, which is a defect of this server")]
    NoStep,
    #[error("the reply to a step has {got} rows, but {expected} were expected, which is a defect of this server")]
    NumRows { expected: usize, got: usize },
    #[error(
        "the reply to a step has the row of slot {got} in place of the row of slot {expected}, which is a defect of this \
         server"
    )]
    Slot { expected: u32, got: u32 },
    #[error("the reply to a step has no token for the row of slot {slot}, which is a defect of this server")]
    NoToken { slot: u32 },
    #[error("the reply to a step has an unwanted token for the row of slot {slot}, which is a defect of this server")]
    UnwantedToken { slot: u32 },
    #[error(
        "the reply to a step has {got} logprobs for the row of slot {slot}, but {expected} were expected, which is a \
         defect of this server"
    )]
    NumLogprobs { slot: u32, expected: u32, got: usize },
    #[error(
        "the reply to a step has top tokens for {got} tokens of the row of slot {slot}, but {expected} were expected, \
         which is a defect of this server"
    )]
    NumTopTokens { slot: u32, expected: u32, got: usize },
}
