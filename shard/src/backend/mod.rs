//! To add a device:
//! 1. A folder here with `impl Backend`: load weights, keep the KV cache and the token history, execute graphs.
//! 2. An arm in [`Device`](crate::args::Device) and in `engine/load.rs`, where it is made.
//! 3. Run the conformance tests of `engine/tests` on it: the same references, and rows that do not see each other.
//!
//! | backend | executes |
//! |---|---|
//! | `candle/` | on the CPU, operation by operation; the reference for all others |
//! | `mock.rs` | no model: the next token is arithmetic over all tokens of its row |
//!
//! A backend names no model, and has no policy: it runs the rows it is given.

pub(crate) mod candle;
mod history;
mod memory;
pub(crate) mod mock;
pub(crate) mod pjrt;

use std::sync::Arc;

use crate::args::Device;
use crate::batch::{Batch, StepOutput};
use crate::graph::{Graph, GraphError, WeightSpec};
use crate::plugins::PluginError;
use crate::weights::WeightsError;

/// Hears how far a piece of work is: what is going on, pieces done, pieces in all.
pub(crate) type Progress<'a> = dyn FnMut(&str, u64, u64) + Send + 'a;

/// Tokens per block of the KV cache.
pub(crate) const BLOCK_SIZE: usize = 16;

/// Something that can execute the steps of one model.
///
/// It holds, per layer, K and V caches `[num_blocks, kv_heads, block_size, head_dim]`, and the token history
/// `[num_slots, max_total_tokens]`: every token of every row by slot and position. Rows never see each other: what a row
/// gets does not depend on its neighbours in the batch, nor on how its prompt was cut into chunks.
pub(crate) trait Backend: Send {
    /// Bytes of KV cache per token.
    fn kv_bytes_per_token(&self) -> u64;

    /// What memory there is for KV cache and token history.
    ///
    /// # Errors
    /// When the system does not tell.
    fn memory(&self) -> Result<MemoryPlan, BackendError>;

    /// Allocates KV cache and token history; what was there before is gone. Compiles what steps of these sizes run.
    /// `progress` hears of each piece of work.
    ///
    /// # Errors
    /// When memory is refused, or the compiler refuses a program.
    fn allocate(&mut self, layout: StateLayout, progress: &mut Progress<'_>) -> Result<(), BackendError>;

    /// Programs that the compiler has made so far; those that were kept from earlier starts do not count.
    fn num_programs_compiled(&self) -> u64 {
        0
    }

    /// Most top tokens that a row can report; `None` is no limit.
    fn max_top_n_tokens(&self) -> Option<usize> {
        None
    }

    /// Runs one step: reads the rows' tokens, writes their keys and values, samples and remembers the tokens.
    ///
    /// # Errors
    /// When the device fails. The state of the rows of this step is unknown then.
    fn execute(&mut self, batch: &Batch) -> Result<StepOutput, BackendError>;
}

/// The graphs of a model, in the order in which their results are handed on.
#[derive(Debug, Clone)]
pub(crate) struct ModelGraphs {
    /// Step → hidden states `[tokens, hidden]`.
    pub(crate) decoder: Arc<Graph>,
    /// Hidden states `[rows, hidden]` (argument 0) → logits `[rows, vocab]`.
    pub(crate) logits: Arc<Graph>,
    /// As `logits`, and target ids `[rows]` (argument 1) → their log-probabilities `[rows]`.
    pub(crate) target_logprobs: Arc<Graph>,
}

impl ModelGraphs {
    /// Every weight once.
    pub(crate) fn weights(&self) -> Vec<&WeightSpec> {
        let mut weights: Vec<&WeightSpec> = self.decoder.weights().chain(self.logits.weights()).collect();
        let mut names = std::collections::HashSet::new();
        weights.retain(|spec| names.insert(&spec.name));
        weights
    }

    /// Bytes of one rank's weights.
    pub(crate) fn weights_bytes(&self) -> u64 {
        self.weights().into_iter().map(WeightSpec::local_bytes).sum()
    }
}

/// What memory there is for KV cache and token history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// What could be allocated.
    pub(crate) available_bytes: u64,
    /// How much of it a cache may take whose size nobody asked for.
    pub(crate) cache_percent: u64,
}

/// Size of a backend's state, and of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateLayout {
    pub(crate) num_slots: usize,
    pub(crate) num_blocks: usize,
    /// Longest row.
    pub(crate) max_total_tokens: usize,
    /// Prompt tokens that a step can have.
    pub(crate) max_batch_prefill_tokens: usize,
}

/// Why a backend cannot do what it was told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackendError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("start {num_threads} compute threads: {source}")]
    Threads { num_threads: usize, source: rayon::ThreadPoolBuildError },
    #[error("compute: {}", first_line(.0))]
    Compute(#[from] candle_core::Error),
    #[error("read {path}: {source}")]
    Memory { path: &'static str, source: std::io::Error },
    #[error("allocate {bytes} bytes: {source}")]
    Allocate { bytes: u64, source: std::collections::TryReserveError },
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error("{device}: {source}")]
    Device { device: Device, source: ::pjrt::Error },
    #[error("topology {name}: {source}")]
    Topology { name: String, source: ::pjrt::Error },
    #[error("{device}: the plugin has no device on this machine")]
    NoDevice { device: Device },
    #[error("start a compiler thread: {source}")]
    CompileThread { source: std::io::Error },
    #[error("print a program: {0}")]
    Graph(#[from] GraphError),
    #[error("program {program}: {source}")]
    Program { program: String, source: ::pjrt::Error },
    #[error(
        "program {program} keeps {alias_bytes} bytes of the KV cache and token history in place, not {donated_bytes}: the compiler \
         would copy them in every step"
    )]
    NotInPlace { program: String, alias_bytes: u64, donated_bytes: u64 },
    #[error("program {program}: the optimised program cannot be read: {source}")]
    Hlo { program: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("step before the KV cache was allocated")]
    NotAllocated,
}

/// Candle's messages are followed by a backtrace where `RUST_BACKTRACE` is set.
fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
