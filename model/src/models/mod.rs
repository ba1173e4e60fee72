//! To add a model architecture:
//! 1. Copy the nearest file of this folder. Its header names the paper, the Hugging Face source that it follows, and
//!    the differences from Llama; its code changes only the corresponding fields of `decoder`'s description. Add each
//!    new key that changes the computation to `neutral`, so that all other families refuse the key.
//! 2. Add a row to `architectures`; for a model whose text is one part of it, also a row to `composite`.
//! 3. A layer that is missing goes to `layers/`, and an operation that is missing to `graph/`. The compiler then
//!    reports the matches that lack the operation.
//! 4. Add two tiny configurations to `integration-tests/fixtures/make_families.py` and run it. It records what
//!    transformers computes, and the lists from which tests make the weights. Names in
//!    `shard/src/engine/tests/families.rs` are compiled by XLA too.
//!
//! A model file names no device and has no sharding code. It reads `config.json` through [`Config`] and returns a
//! [`Model`].

mod activation;
mod afmoe;
mod apertus;
mod architectures;
mod bloom;
mod cohere;
mod composite;
mod config;
mod cwm;
mod decoder;
mod deepseek;
mod dots1;
mod ernie;
mod ernie4_5_moe;
mod exaone4;
mod exaone_moe;
mod falcon;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod generation_config;
mod gguf;
mod glm;
mod glm4_moe;
mod gpt2;
mod gpt_neo;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod helium;
mod hunyuan;
mod hunyuan_moe;
mod hy_v3;
mod internlm3;
mod llama;
mod llama4;
mod mellum;
mod minicpm3;
mod minimax_m2;
mod mistral;
mod mixtral;
mod nanochat;
mod nemotron;
mod neutral;
mod olmo;
mod olmo2;
mod olmoe;
mod opt;
mod persimmon;
mod phi;
mod phi3;
mod quantization;
mod qwen2;
mod qwen3;
mod qwen_moe;
mod rope_config;
mod seed_oss;
mod sigmoid_experts;
mod smollm3;
mod stablelm;
mod starcoder2;
mod unread;
mod vaultgemma;

use std::sync::Arc;

use numbers::FloatType;

use crate::graph::Graph;
use crate::layers::Head;
use architectures::ARCHITECTURES;
pub use config::{Config, ModelError};
pub use generation_config::read as sampling_defaults;
pub(crate) use gguf::{Row as GgufRow, find as gguf_row};
pub use gguf::{architectures as gguf_architectures, config as gguf_config};
pub use quantization::read as quantization;

/// A causal language model as graphs.
#[derive(Debug, Clone)]
pub struct Model {
    /// From the tokens of a step to hidden states `[tokens, hidden]` after the last norm. The graph also writes the KV
    /// cache.
    pub decoder: Arc<Graph>,
    /// The output head, from hidden states to logits.
    pub head: Head,
}

/// Returns the names of the supported architectures.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, _)| *name)
}

/// Builds one rank's part of the model that `config` describes, with the builder of the first architecture that
/// `config` names.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`] points to the list of supported architectures. Most other errors name the key of
/// config.json that is at fault.
pub fn build(config: &Config, dtype: FloatType, num_ranks: usize) -> Result<Model, ModelError> {
    let architecture = config.architecture()?;
    let row = ARCHITECTURES.iter().find(|(name, _)| *name == architecture);
    let (_, build) = row.ok_or_else(|| ModelError::UnknownArchitecture {
        architecture: architecture.to_owned(),
        num_known: ARCHITECTURES.len(),
        example: "LlamaForCausalLM",
    })?;
    quantization(config)?;
    build(config, dtype, num_ranks)
}
