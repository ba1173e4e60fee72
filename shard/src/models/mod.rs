//! To add a model architecture:
//! 1. Copy the nearest file of this folder. Its header names the paper, the Hugging Face source it follows, and what
//!    differs from Llama.
//! 2. Add a row to [`ARCHITECTURES`].
//! 3. A missing piece goes to `layers/`; a truly new operation to `graph/`, and the compiler names each backend.
//! 4. Add a tiny checkpoint with recorded references to `integration-tests/fixtures/` and its name to `engine/tests`.
//!
//! A model file names no device and has no sharding code. It reads `config.json` through [`Config`] and answers a [`Model`].

mod config;
mod llama;
mod rope_config;

use std::sync::Arc;

pub(crate) use config::{Config, ModelError};

use crate::graph::{DType, Graph};
use crate::layers::Linear;

/// Builds the model that a config describes, with weights of one type, for one of so many ranks.
type Build = fn(&Config, DType, usize) -> Result<Model, ModelError>;

/// Hugging Face architecture → builder.
const ARCHITECTURES: [(&str, Build); 1] = [("LlamaForCausalLM", llama::build)];

/// A causal language model as graphs.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    /// Token ids `[tokens]` → hidden states `[tokens, hidden]` after the last norm. Writes the KV cache.
    pub(crate) decoder: Arc<Graph>,
    /// Hidden state → logits.
    pub(crate) head: Linear,
}

/// Builds one rank's part of the model of `config`, for the architecture it names.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`] lists those there are; the others name the key of config.json and its value.
pub(crate) fn build(config: &Config, dtype: DType, world_size: usize) -> Result<Model, ModelError> {
    let architecture = config.architecture()?;
    let row = ARCHITECTURES.iter().find(|(name, _)| *name == architecture);
    let (_, build) = row.ok_or_else(|| {
        let known: Vec<&str> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
        ModelError::UnknownArchitecture { architecture: architecture.to_owned(), known: known.join(", ") }
    })?;
    build(config, dtype, world_size)
}
