//! A step as data, and the trait that executes it. `devices/src/lib.rs` says how a device is added.
//!
//! Doors: [`Batch`], [`Backend`]. A backend loads weights, keeps the states of the graphs, and executes them:
//!
//! | backend | executes |
//! |---|---|
//! | `cpu` | on the CPU, operation by operation; the reference for all others |
//! | `xla` | on a TPU, an NVIDIA GPU or XLA's CPU: the graphs compiled for the sizes of a few buckets |
//! | [`MockBackend`] | no model: the next token is arithmetic over all tokens of its row |
//!
//! A backend names no model, and has no policy: it runs the rows it is given.

mod batch;
mod error;
mod history;
mod membership;
mod memory;
mod mock;
mod model_graphs;
mod processors;
mod ranks;

use model::graph::StateBytes;

pub use batch::{
    Batch, BatchRow, CachedTokens, PromptTargets, PromptToken, RowSampler, SAMPLED_TOKEN, SampledRow, SampledToken,
    StepOutput,
};
pub use error::{BackendError, Fault};
pub use history::TokenHistory;
pub use membership::{Membership, Stays};
pub use mock::MockBackend;
pub use model_graphs::ModelGraphs;
pub use processors::Processors;
pub use ranks::LocalRanks;

/// Hears how far a piece of work is: what is going on, pieces done, pieces in all.
pub type Progress<'a> = dyn FnMut(&str, u64, u64) + Send + 'a;

/// Tokens per block of the KV cache.
pub const BLOCK_SIZE: usize = 16;

/// Something that can execute the steps of one model.
///
/// It holds the states of the model's graphs: keys and values of tokens in blocks, the token history by slot and position.
/// Rows never see each other: what a row gets does not depend on its neighbours in the batch, nor on how its prompt was cut
/// into chunks.
pub trait Backend: Send {
    /// Bytes that one rank keeps between steps.
    fn state_bytes(&self) -> StateBytes;

    /// Bytes of one rank's weights, where they are not what the type of the model makes them.
    fn weights_bytes(&self) -> Option<u64> {
        None
    }

    /// The memory that there is for one rank's states.
    ///
    /// # Errors
    /// When the system does not tell.
    fn memory(&self) -> Result<MemoryPlan, BackendError>;

    /// The devices of this process, in the order of their ranks.
    fn devices(&self) -> Vec<DevicePlace>;

    /// Allocates the states; what was there before is gone. Compiles what steps of these sizes run.
    /// `assignment` has the id of the device of each rank, those of other processes too. `progress` hears of each piece of
    /// work.
    ///
    /// # Errors
    /// When the assignment gives this process's ranks other devices than those that have their weights, memory is refused,
    /// or the compiler refuses a program.
    fn allocate(
        &mut self,
        layout: StateLayout,
        assignment: &[i64],
        progress: &mut Progress<'_>,
    ) -> Result<(), BackendError>;

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

/// Where a device is among all that share a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePlace {
    /// Its number, unique among the devices of all processes.
    pub id: i64,
    /// The process that drives it.
    pub process_index: i64,
    /// Its place among the chips of a slice; empty where there is no such thing.
    pub coords: Vec<i64>,
}

/// Memory for one rank's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// What could be allocated.
    pub available_bytes: u64,
    /// How much of it a cache may take whose size nobody asked for.
    pub cache_percent: u64,
}

/// Size of a backend's state, and of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLayout {
    pub num_slots: usize,
    pub num_blocks: usize,
    /// Longest row.
    pub max_total_tokens: usize,
    /// Prompt tokens that a step can have.
    pub max_batch_prefill_tokens: usize,
}

impl DevicePlace {
    /// The place of a rank that is a process on a host's processor.
    pub fn of_host(rank: usize) -> Self {
        Self { id: rank as i64, process_index: rank as i64, coords: Vec::new() }
    }
}
