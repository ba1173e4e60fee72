//! Devices with PJRT plugins: the graphs are printed as StableHLO and compiled for the sizes of a few buckets.
//!
//! Entry point: [`XlaBackend`]. A step becomes launches ([`bucket`](self)), usually with one transfer in
//! ([`step_input`](self)) and one out ([`consumers`](self)). KV caches and token history stay on the device: the states
//! that a program returns take over the memory of those that it takes. The tokens that one step samples are stored
//! where the next step reads them, so the next step can be launched before the host has them.
//!
//! Each device that a process uses is a rank of the model, with its part of the weights and of the state. All devices
//! run the same programs and report the same tokens, so only the first one's report is read.

mod ahead;
mod bucket;
mod cache;
mod compiler;
mod consumers;
mod error;
mod hlo;
mod launch_id;
mod placement;
mod platform;
mod probe;
mod program;
mod rounded_rows;
mod stablehlo;
mod state;
mod step_input;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;
mod token_input;
mod upload_budget;
mod weights;

use std::path::PathBuf;

use backend::{
    Backend, BackendError, Batch, DevicePlace, LocalRanks, Membership, MemoryPlan, ModelGraphs, PendingStep, Progress,
    Pulse, StateLayout, WeightBytes,
};
use model::graph::{StateBytes, WeightSpec};
use model::weights::Checkpoint;
use pjrt::Client;

pub use ahead::{AheadOfTime, ProgramCost, ProgramFigures};
use bucket::Buckets;
use cache::{ProgramCache, Target};
use compiler::Compiler;
use error::XlaError;
pub use platform::Platform;
pub use probe::{NamedTopology, PROBES, Probe, ProbeEvent, ProbeLine, ProbeOptions, probe};
pub use program::Program;
use program::{ProgramKey, Programs};
use state::{Host, LocalDevice, Model, Prepared, State};
use weights::Source;

/// The options of a backend.
#[derive(Debug)]
pub struct XlaOptions {
    /// The ranks of this process. The process uses one device for each, in ascending order of device ids.
    pub ranks: LocalRanks,
    /// The membership of this process in the group of the shards on its host.
    pub membership: Membership,
    /// Path of the plugin; if `None`, the plugin is searched for.
    pub plugin_path: Option<PathBuf>,
    /// The folder where compiled programs are stored; if `None`, no programs are stored.
    pub program_cache: Option<PathBuf>,
}

/// A model that is loaded onto devices with a PJRT plugin, and its states.
#[derive(Debug)]
pub struct XlaBackend {
    platform: Platform,
    client: Client,
    ranks: LocalRanks,
    /// Kept because dropping the membership ends the group, and other shards may still be loading.
    _membership: Membership,
    devices: Vec<LocalDevice>,
    cache: ProgramCache,
    graphs: ModelGraphs,
    /// True if [`ProgramKey::LayOutTables`] has run, or is not needed.
    has_tables_by_rows: bool,
    state: Option<State>,
    pulse: Pulse,
}

impl XlaBackend {
    /// Opens the plugin of `platform` and loads the weights of `graphs` onto its first devices, one device per rank of
    /// this process. `progress` is called repeatedly with the number of loaded weights and the total.
    ///
    /// # Errors
    /// When the plugin cannot be opened, its devices do not fit the ranks, or the weights cannot be loaded onto the
    /// devices.
    pub fn load(
        platform: Platform,
        options: XlaOptions,
        graphs: &ModelGraphs,
        checkpoint: &Checkpoint,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, BackendError> {
        let platform = platform.with_devices(options.ranks.num_local);
        let client = platform.open(options.plugin_path.as_deref())?;
        Ok(Self::on_client(platform, client, options, Source { graphs, checkpoint }, progress)?)
    }

    /// As [`XlaBackend::load`], with a client that is open.
    fn on_client(
        platform: Platform,
        client: Client,
        options: XlaOptions,
        source: Source<'_>,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, XlaError> {
        let XlaOptions { ranks, membership, plugin_path: _, program_cache } = options;
        let devices = placement::ranked_devices(&client, platform.device, ranks)?;
        let platform = platform.for_kind(devices.first().map_or("", |(_, device)| &device.description().kind));
        let weights = weights::upload(source, &membership, &client, &devices, progress)?;
        let local = |((rank, device), weights)| LocalDevice { rank, device, weights };
        let devices = devices.into_iter().zip(weights).map(local).collect();
        let cache = ProgramCache::new(program_cache);
        let graphs = source.graphs.clone();
        Ok(Self {
            platform,
            client,
            ranks,
            _membership: membership,
            devices,
            cache,
            graphs,
            has_tables_by_rows: false,
            state: None,
            pulse: Pulse::default(),
        })
    }

    /// Checks `assignment`, the device id of each rank: each rank of this process must be on the device that has its
    /// weights.
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

    fn weight_bytes(&self) -> Option<WeightBytes> {
        let ModelGraphs { decoder, logits } = &self.graphs;
        Some(WeightBytes::of([decoder, logits], self.graphs.weights_bytes(), WeightSpec::local_bytes))
    }

    fn memory(&self) -> Result<MemoryPlan, BackendError> {
        if self.platform.device.uses_host_memory {
            return MemoryPlan::of_host(self.ranks.num_ranks);
        }
        let limit = |local: &LocalDevice| {
            let limit = local.device.memory_stats().ok()?.bytes_limit?;
            u64::try_from(limit).ok().filter(|limit| *limit > 0)
        };
        let limit = self.devices.iter().filter_map(limit).min();
        let nominal = self.client.topology().and_then(|topology| self.platform.memory_bytes(&topology)).ok().flatten();
        let bytes =
            placement::memory_bytes(nominal, limit).ok_or(XlaError::NoMemoryLimit { device: self.platform.device })?;
        Ok(MemoryPlan::of_device(bytes, self.graphs.weights_bytes()))
    }

    fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    fn devices(&self) -> Vec<DevicePlace> {
        let place = |local: &LocalDevice| {
            let description = local.device.description();
            let coords = description.coords().unwrap_or_default().to_vec();
            DevicePlace { rank: local.rank, id: description.id, process_index: description.process_index, coords }
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
        // The old state is dropped first: memory may not suffice for both.
        self.state = None;
        let programs = Programs::new(&self.graphs, layout, self.ranks.num_ranks, self.platform.form);
        let buckets = Buckets::new(layout, &self.platform.form);
        let target = Target::of_client(&self.client);
        let compiler = Compiler::new(target, self.platform.compile_options(assignment), self.cache.clone());
        let mut keys = programs.keys(&buckets);
        keys.retain(|key| !self.has_tables_by_rows || *key != ProgramKey::LayOutTables);
        let texts =
            keys.iter().map(|key| programs.print(*key)).collect::<Result<Vec<_>, _>>().map_err(XlaError::from)?;
        let executables = compiler.compile(&self.client, &texts, progress)?;
        let host = Host { client: &self.client, devices: &self.devices };
        let executables = keys.into_iter().zip(executables.into_iter().map(|one| Prepared::new(one, host))).collect();
        let mut state =
            State::new(Model { buckets, programs, executables, compiler }, self.devices.len(), self.pulse.clone());
        if !self.has_tables_by_rows {
            let tables = state.lay_out_tables(host)?;
            for (local, tables) in self.devices.iter_mut().zip(tables) {
                tables.into_iter().for_each(|(name, table)| local.weights.set(local.weights.index(&name), table));
            }
            self.has_tables_by_rows = true;
        }
        state.clear(Host { client: &self.client, devices: &self.devices })?;
        self.state = Some(state);
        Ok(())
    }

    fn num_programs_compiled(&self) -> u64 {
        self.state.as_ref().map_or(0, State::num_programs_compiled)
    }

    fn chunk_sizes(&self) -> &[usize] {
        self.state.as_ref().map_or(&[], State::chunk_sizes)
    }

    fn max_top_n_tokens(&self) -> Option<usize> {
        Some(program::TOP_TOKENS)
    }

    fn launch(&mut self, batch: &Batch) -> Result<PendingStep, BackendError> {
        let state = self.state.as_mut().ok_or(BackendError::NotAllocated)?;
        let host = Host { client: &self.client, devices: &self.devices };
        let reports = state.launch(batch, host);
        if reports.is_err() {
            // State that was donated to a failed launch is lost.
            self.state = None;
        }
        let (reports, pulse) = (reports?, self.pulse.clone());
        // A launch that fails on the device spoils the states that it returns, so later launches that take them fail
        // too.
        Ok(Box::pin(async move { Ok(reports.outputs(&pulse).await?) }))
    }
}
