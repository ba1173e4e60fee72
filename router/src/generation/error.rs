//! The errors of a generation.
//!
//! The messages are TGI's where TGI has the same error, because clients match on them. `crate::error` chooses the HTTP
//! status of each error.

use crate::batcher::SubmitError;
use crate::text::TextError;
use crate::validation::ValidationError;

/// The reason why a generation has no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum GenerationError {
    /// Too few permits are free, too many tokens wait in the queue, or no memory or thread became free in time.
    #[error("Model is overloaded")]
    Overloaded,
    /// The request is not valid.
    #[error("Input validation error: {0}")]
    Validation(#[from] ValidationError),
    /// The shards, the tokenizer or the grammar failed, or unread answers take too much memory.
    #[error("Request failed during generation: {0}")]
    Failed(String),
    /// The server stops before the request has a complete response, or refuses the request because of that.
    #[error("the server is shutting down; send the request again, to another server")]
    Stopping,
    /// The request took longer than `--request-timeout` allows.
    #[error("Request timed out: it took longer than `--request-timeout` allows")]
    TimedOut,
    /// The sequence's events ended before the last token came, which is a defect of the server.
    #[error("Incomplete generation")]
    Incomplete,
}

impl From<TextError> for GenerationError {
    fn from(error: TextError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<SubmitError> for GenerationError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Stopped => Self::Stopping,
            SubmitError::QueueFull => Self::Overloaded,
        }
    }
}
