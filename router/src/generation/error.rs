//! Why a generation ends without an answer.
//!
//! The sentences are TGI's, because clients match on them. Which HTTP status each gets is decided in
//! `crate::error`.

use crate::batcher::SubmitError;
use crate::text::TextError;
use crate::validation::ValidationError;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum GenerationError {
    /// No permit is left, or too many tokens wait.
    #[error("Model is overloaded")]
    Overloaded,
    /// The request cannot be carried out.
    #[error("Input validation error: {0}")]
    Validation(#[from] ValidationError),
    /// The shards failed, or the server stops.
    #[error("Request failed during generation: {0}")]
    Failed(String),
    /// It took longer than `--request-timeout` allows.
    #[error("Request timed out: it took longer than `--request-timeout` allows")]
    TimedOut,
    /// The events ended without a last one: a defect.
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
