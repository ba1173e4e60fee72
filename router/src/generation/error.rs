//! The errors of a generation.
//!
//! The messages are TGI's, because clients match on them. `crate::error` chooses the HTTP status of each.

use crate::batcher::SubmitError;
use crate::text::TextError;
use crate::validation::ValidationError;

/// The reason why a generation has no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum GenerationError {
    /// No permit is left, or too many tokens wait.
    #[error("Model is overloaded")]
    Overloaded,
    /// The request is not valid.
    #[error("Input validation error: {0}")]
    Validation(#[from] ValidationError),
    /// The shards failed, or the server is stopping.
    #[error("Request failed during generation: {0}")]
    Failed(String),
    /// The request took longer than `--request-timeout` allows.
    #[error("Request timed out: it took longer than `--request-timeout` allows")]
    TimedOut,
    /// The events ended without a last one, which is a defect.
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
            SubmitError::Stopped => Self::Failed(error.to_string()),
            SubmitError::QueueFull => Self::Overloaded,
        }
    }
}
