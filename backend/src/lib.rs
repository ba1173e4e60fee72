//! A step as data, and the trait that executes it. `devices/src/lib.rs` says how to add a device.
//!
//! Entry points: [`Batch`], [`Backend`]. A backend loads weights, keeps the states of the graphs, and executes them:
//!
//! | backend | executes |
//! |---|---|
//! | `cpu` | on the CPU; the reference for `xla` |
//! | `xla` | on a TPU, an NVIDIA GPU or XLA's CPU: the graphs compiled for the sizes of a few buckets |
//! | [`MockBackend`] | no model: the next token is arithmetic over all tokens of its row |
//!
//! A backend names no model and has no policy: it runs the rows that it is given.

mod batch;
mod error;
mod history;
mod membership;
mod memory;
mod mock;
mod model_graphs;
mod pending;
mod processors;
mod pulse;
mod ranks;

use model::graph::{Graph, StateBytes, WeightSpec};

pub use batch::{
    Batch, BatchRow, CachedTokens, PromptTargets, PromptToken, RowSampler, SAMPLED_TOKEN, SampledRow, SampledToken,
    StepOutput,
};
pub use error::{BackendError, Fault};
pub use history::TokenHistory;
pub use membership::{Membership, Place, Stays};
pub use memory::MemoryPlan;
pub use mock::MockBackend;
pub use model_graphs::ModelGraphs;
pub use pending::{PendingStep, computed};
pub use processors::Processors;
pub use pulse::Pulse;
pub use ranks::LocalRanks;

/// A progress callback. Its arguments are a description of the work, the number of completed units and the total
/// number.
pub type Progress<'a> = dyn FnMut(&str, u64, u64) + Send + 'a;

/// Tokens per block of the KV cache.
pub const BLOCK_SIZE: usize = 16;

/// The execution of one model's steps on the devices of this process.
///
/// A backend owns the states of the model's graphs: the keys and values of tokens, in blocks, and states by slot, such
/// as the token history. Rows are independent: apart from rounding, the result of a row does not depend on the other
/// rows of the batch, nor on how its prompt is split into chunks.
pub trait Backend: Send {
    /// Returns the bytes of the states that one rank keeps between steps.
    fn state_bytes(&self) -> StateBytes;

    /// Returns the bytes of one rank's weights as this backend stores them; `None` if it stores none.
    fn weight_bytes(&self) -> Option<WeightBytes> {
        None
    }

    /// Returns the memory available for one rank's states.
    ///
    /// # Errors
    /// When the system does not report its memory.
    fn memory(&self) -> Result<MemoryPlan, BackendError>;

    /// Returns the devices of this process, in the order of their ranks.
    fn devices(&self) -> Vec<DevicePlace>;

    /// Allocates the states and drops earlier ones. If the backend compiles programs, compiles those for steps of these
    /// sizes, and `progress` reports how far the compilation is. `assignment` contains the device id of every rank,
    /// including the ranks of other processes.
    ///
    /// # Errors
    /// When `assignment` gives a rank of this process another device than the one that has the rank's weights, when
    /// memory is refused, or when a program does not compile.
    fn allocate(
        &mut self,
        layout: StateLayout,
        assignment: &[i64],
        progress: &mut Progress<'_>,
    ) -> Result<(), BackendError>;

    /// Returns the number of programs compiled so far, without those loaded from a cache of earlier starts.
    fn num_programs_compiled(&self) -> u64 {
        0
    }

    /// Returns the counter that this backend advances while it computes steps.
    fn pulse(&self) -> Pulse;

    /// Returns the lengths to which the tokens that a row reads of a prompt are padded, ascending; empty if they are
    /// not padded.
    fn chunk_sizes(&self) -> &[usize] {
        &[]
    }

    /// Returns the maximum number of top tokens that a row can report; `None` means no limit.
    fn max_top_n_tokens(&self) -> Option<usize> {
        None
    }

    /// Starts one step: reads the rows' tokens, writes their keys and values, samples tokens and stores them in the
    /// history. A backend whose device works on its own does not wait for the results. The next step may be started
    /// before they are there, because it finds the sampled tokens in the history.
    ///
    /// # Errors
    /// When the device fails, here or in the returned future. The state of the rows of this step, and of all steps
    /// started after it, is then unknown.
    fn launch(&mut self, batch: &Batch) -> Result<PendingStep, BackendError>;
}

/// The bytes of one rank's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WeightBytes {
    /// Those of all weights.
    pub all: u64,
    /// Those that linear layers multiply for one row and, of the experts, those that the row chooses, as if the rank
    /// had all of them.
    pub of_row: u64,
}

impl WeightBytes {
    /// Returns `all` and, for a row, the sum of the sizes of the weights that the `graphs` multiply.
    pub fn of(graphs: [&Graph; 2], all: u64, size: impl Fn(&WeightSpec) -> u64) -> Self {
        Self { all, of_row: graphs.map(|graph| graph.sum_of_multiplied(&size)).into_iter().sum() }
    }
}

/// The position of a device among all devices that share a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePlace {
    /// The rank of the device.
    pub rank: usize,
    /// The device id, unique among the devices of all processes.
    pub id: i64,
    /// The index of the process that drives the device.
    pub process_index: i64,
    /// The coordinates of the device among the chips of a TPU slice; empty if the device has no coordinates.
    pub coords: Vec<i64>,
}

/// The sizes of a backend's states and of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLayout {
    pub num_slots: usize,
    pub num_blocks: usize,
    /// The maximum number of tokens of a row.
    pub max_total_tokens: usize,
    /// The maximum number of prompt tokens of a step.
    pub max_batch_prefill_tokens: usize,
}

impl DevicePlace {
    /// Returns the place of a rank that is a process and computes on the host's CPU.
    pub fn of_host(rank: usize) -> Self {
        Self { rank, id: rank as i64, process_index: rank as i64, coords: Vec::new() }
    }
}
