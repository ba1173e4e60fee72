//! A request for one or several generations of a prompt.

use std::sync::Arc;
use std::time::Instant;

use super::report::RequestId;
use crate::validation::{GenerationOptions, PromptInput};

/// The prompt and the options of one request.
#[derive(Debug, Clone)]
pub(crate) struct GenerationRequest {
    pub(crate) prompt: PromptInput,
    pub(crate) options: GenerationOptions,
    /// The number of answers to generate, at least one. If the client gives a seed, choice `n` uses the seed plus `n`.
    pub(crate) num_choices: u32,
    pub(crate) received_at: Instant,
    /// The request's name in the log.
    pub(crate) request_id: RequestId,
}

/// The prompt of a valid request.
#[derive(Debug)]
pub(crate) struct ValidPrompt {
    pub(crate) token_ids: Arc<[u32]>,
    pub(crate) num_choices: u32,
    pub(crate) max_new_tokens: u32,
}

impl GenerationRequest {
    /// The number of sequences of each choice.
    pub(super) fn best_of(&self) -> u32 {
        self.options.best_of.unwrap_or(1)
    }

    /// The number of sequences of all choices.
    pub(super) fn num_sequences(&self) -> u32 {
        self.num_choices.saturating_mul(self.best_of())
    }
}
