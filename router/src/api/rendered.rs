//! The prompt that the model would read for a request: the response of the routes that end in `/render`.
//!
//! Source: vLLM 0.33, `vllm/entrypoints/scale_out/render`. Gateways that choose a server by the prefixes which it has
//! in its cache ask for these tokens.

use serde::Serialize;
use utoipa::ToSchema;

use crate::generation::ValidPrompt;

/// The tokens of one prompt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RenderedPrompt {
    request_id: String,
    /// The model's id.
    model: String,
    /// The ids of all tokens that the model would read, special tokens included.
    token_ids: Vec<u32>,
    sampling_params: RenderedParams,
}

/// The parameters that the request would have.
#[derive(Debug, Serialize, ToSchema)]
struct RenderedParams {
    n: u32,
    max_tokens: u32,
}

impl RenderedPrompt {
    /// Returns the response for a prompt. Its random id begins with `prefix`.
    pub(crate) fn new(prefix: &str, model: &str, prompt: ValidPrompt) -> Self {
        let ValidPrompt { token_ids, num_choices, max_new_tokens } = prompt;
        Self {
            request_id: format!("{prefix}-{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..)),
            model: model.to_owned(),
            token_ids: token_ids.to_vec(),
            sampling_params: RenderedParams { n: num_choices, max_tokens: max_new_tokens },
        }
    }
}
