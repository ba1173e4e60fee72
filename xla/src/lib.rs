//! Devices behind PJRT plugins: the graphs are printed as StableHLO and compiled for the sizes of a few buckets.
//!
//! Door: [`XlaBackend`]. A step becomes launches ([`bucket`](self)), each with one transfer in ([`step_input`](self)) and one out
//! ([`consumers`](self)). KV caches and token history stay on the device: a program takes their memory over, and the tokens that
//! one step samples are where the next one reads them, so steps can follow each other without the host.
//!
//! Each device of a process is a rank of the model: it has its part of the weights and of the state, all run the same program,
//! and all answer the same, so only the first is asked.

mod ahead;
mod bucket;
mod cache;
mod compiler;
mod consumers;
mod error;
mod hlo;
mod launch_id;
mod platform;
mod program;
mod rounded_rows;
mod stablehlo;
mod state;
mod step_input;
#[cfg(test)]
mod tests;
mod token_input;
mod weights;

use std::path::PathBuf;

use backend::{
    Backend, BackendError, Batch, DevicePlace, LocalRanks, Membership, MemoryPlan, ModelGraphs, Progress, StateLayout,
    StepOutput,
};
use model::graph::StateBytes;
use model::weights::Checkpoint;
use pjrt::{Client, Device};

pub use ahead::{AheadOfTime, ProgramCost, ProgramFigures};
use bucket::Buckets;
use cache::{ProgramCache, Target};
use compiler::Compiler;
use error::XlaError;
pub use platform::Platform;
pub use program::Program;
use program::Programs;
use state::{Host, LocalDevice, Model, State};
use weights::Source;

/// How a backend is opened.
#[derive(Debug)]
pub struct XlaOptions {
    /// The ranks of this process: as many devices are taken, in the order of their ids.
    pub ranks: LocalRanks,
    /// This process among the shards of its host.
    pub membership: Membership,
    /// The plugin; searched for where it is not given.
    pub plugin_path: Option<PathBuf>,
    /// Folder of compiled programs; none are kept without one.
    pub program_cache: Option<PathBuf>,
}

/// A model on devices behind a plugin.
#[derive(Debug)]
pub struct XlaBackend {
    platform: Platform,
    client: Client,
    ranks: LocalRanks,
    /// Held, because the others may still be loading: who is dropped ends the group.
    _membership: Membership,
    devices: Vec<LocalDevice>,
    cache: ProgramCache,
    graphs: ModelGraphs,
    state: Option<State>,
}

impl XlaBackend {
    /// Opens the plugin of `platform` and loads the weights of `graphs` onto its first devices. `progress` hears of each.
    ///
    /// # Errors
    /// When there is no plugin or too few devices, a weight is missing or malformed, or there is no memory for it.
    pub fn load(
        platform: Platform,
        options: XlaOptions,
        graphs: &ModelGraphs,
        checkpoint: &Checkpoint,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, BackendError> {
        let XlaOptions { ranks, membership, plugin_path, program_cache } = options;
        let platform = platform.with_devices(ranks.num_local);
        let client = platform.open(plugin_path.as_deref())?;
        let mut devices = client.addressable_devices();
        devices.sort_by_key(Device::id);
        let (wanted, found) = (ranks.num_local, devices.len());
        if found < wanted {
            return Err(XlaError::NoDevice { device: platform.device, wanted, found }.into());
        }
        devices.truncate(wanted);
        let source = Source { checkpoint, first_rank: ranks.first, membership: &membership };
        let weights = weights::upload(graphs, source, &client, &devices, progress)?;
        let local = |((rank, device), weights)| LocalDevice { rank, device, weights };
        let devices = ranks.local().zip(devices).zip(weights).map(local).collect();
        let cache = ProgramCache::new(program_cache);
        let graphs = graphs.clone();
        Ok(Self { platform, client, ranks, _membership: membership, devices, cache, graphs, state: None })
    }

    /// Weights lie where the ranks were when they were loaded: the assignment must say the same.
    fn check(&self, assignment: &[i64]) -> Result<(), XlaError> {
        let (found, num_ranks) = (assignment.len(), self.ranks.num_ranks);
        if found != num_ranks {
            return Err(XlaError::AssignmentLength { found, num_ranks });
        }
        let wrong = self.devices.iter().find(|local| assignment[local.rank] != local.device.id());
        wrong.map_or(Ok(()), |local| {
            let (rank, device) = (local.rank, local.device.id());
            Err(XlaError::Assignment { rank, assigned: assignment[rank], device })
        })
    }
}

impl Backend for XlaBackend {
    fn state_bytes(&self) -> StateBytes {
        self.platform.form.state_bytes(&self.graphs)
    }

    fn weights_bytes(&self) -> Option<u64> {
        Some(self.graphs.weights_bytes())
    }

    fn memory(&self) -> Result<MemoryPlan, BackendError> {
        let limit = |local: &LocalDevice| {
            let limit = local.device.memory_stats().ok()?.bytes_limit?;
            u64::try_from(limit).ok().filter(|limit| *limit > 0)
        };
        match self.devices.iter().map(limit).min() {
            Some(Some(limit_bytes)) => Ok(MemoryPlan::of_device(limit_bytes, self.graphs.weights_bytes())),
            // The devices' memory is the host's.
            Some(None) | None => MemoryPlan::of_host(self.ranks.num_ranks),
        }
    }

    fn devices(&self) -> Vec<DevicePlace> {
        let place = |local: &LocalDevice| {
            let description = local.device.description();
            let coords = description.coords().unwrap_or_default().to_vec();
            DevicePlace { id: description.id, process_index: description.process_index, coords }
        };
        self.devices.iter().map(place).collect()
    }

    fn allocate(
        &mut self,
        layout: StateLayout,
        assignment: &[i64],
        progress: &mut Progress<'_>,
    ) -> Result<(), BackendError> {
        self.check(assignment)?;
        // The old state goes before the next one comes: both may not fit.
        self.state = None;
        let programs = Programs::new(&self.graphs, layout, self.ranks.num_ranks, self.platform.form);
        let buckets = Buckets::new(layout.num_slots, layout.max_batch_prefill_tokens, layout.max_total_tokens);
        let target = Target::of_client(&self.client);
        let compiler = Compiler::new(target, self.platform.compile_options(assignment), self.cache.clone());
        let keys = buckets.programs();
        let texts =
            keys.iter().map(|key| programs.print(*key)).collect::<Result<Vec<_>, _>>().map_err(XlaError::from)?;
        let executables = compiler.compile(&self.client, &texts, progress)?;
        let executables = keys.into_iter().zip(executables).collect();
        let host = Host { client: &self.client, devices: &self.devices };
        self.state = Some(State::new(Model { buckets, programs, executables, compiler }, host)?);
        Ok(())
    }

    fn num_programs_compiled(&self) -> u64 {
        self.state.as_ref().map_or(0, State::num_programs_compiled)
    }

    fn max_top_n_tokens(&self) -> Option<usize> {
        Some(program::TOP_TOKENS)
    }

    fn execute(&mut self, batch: &Batch) -> Result<StepOutput, BackendError> {
        let state = self.state.as_mut().ok_or(BackendError::NotAllocated)?;
        let host = Host { client: &self.client, devices: &self.devices };
        let reports = state.launch(batch, host);
        let output = reports.and_then(|reports| reports.wait(batch));
        if output.is_err() {
            // What was donated to a failed launch is lost.
            self.state = None;
        }
        Ok(output?)
    }
}
