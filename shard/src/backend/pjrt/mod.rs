//! Devices behind PJRT plugins: the graphs are printed as StableHLO and compiled for the sizes of a few buckets.
//!
//! Door: [`PjrtBackend`]. A step becomes launches ([`bucket`](self)), each with one transfer in ([`step_input`](self)) and one out
//! ([`report`](self)). KV caches and token history stay on the device: a program takes their memory over, and the tokens that
//! one step samples are where the next one reads them, so steps can follow each other without the host.

mod ahead;
mod bucket;
mod cache;
mod compiler;
mod hlo;
mod platform;
mod program;
mod report;
mod stablehlo;
mod state;
mod step_input;
#[cfg(test)]
mod tests;
mod weights;

use std::collections::HashMap;
use std::path::PathBuf;

use ::pjrt::{Buffer, Client, Device};

use super::{Backend, BackendError, MemoryPlan, ModelGraphs, Progress, StateLayout};
use crate::batch::{Batch, StepOutput};
use crate::weights::Checkpoint;
pub(crate) use ahead::{AheadOfTime, ProgramFigures};
use bucket::Buckets;
use cache::{ProgramCache, Target};
use compiler::Compiler;
pub(crate) use platform::Platform;
pub(crate) use program::Program;
use program::Programs;
use state::{Host, Model, State};

/// How a backend is opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct PjrtOptions {
    /// The plugin; searched for where it is not given.
    pub(crate) plugin_path: Option<PathBuf>,
    /// Folder of compiled programs; none are kept without one.
    pub(crate) program_cache: Option<PathBuf>,
}

/// A model on a device behind a plugin.
#[derive(Debug)]
pub(crate) struct PjrtBackend {
    platform: Platform,
    client: Client,
    device: Device,
    cache: ProgramCache,
    graphs: ModelGraphs,
    weights: HashMap<String, Buffer>,
    state: Option<State>,
}

impl PjrtBackend {
    /// Opens the plugin of `platform` and loads the weights of `graphs` onto its first device. `progress` hears of each.
    ///
    /// # Errors
    /// When there is no plugin or no device, a weight is missing or malformed, or there is no memory for it.
    pub(crate) fn load(
        platform: Platform,
        options: PjrtOptions,
        graphs: &ModelGraphs,
        checkpoint: &Checkpoint,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, BackendError> {
        let PjrtOptions { plugin_path, program_cache } = options;
        let client = platform.open(plugin_path.as_deref())?;
        let device = client.addressable_devices().into_iter().next();
        let device = device.ok_or(BackendError::NoDevice { device: platform.device })?;
        let weights = weights::upload(graphs, checkpoint, (&client, &device), progress)?;
        let cache = ProgramCache::new(program_cache);
        Ok(Self { platform, client, device, cache, graphs: graphs.clone(), weights, state: None })
    }
}

impl Backend for PjrtBackend {
    fn kv_bytes_per_token(&self) -> u64 {
        self.platform.form.kv_bytes_per_token(&self.graphs)
    }

    fn memory(&self) -> Result<MemoryPlan, BackendError> {
        match self.device.memory_stats() {
            Ok(stats) if stats.bytes_limit.is_some_and(|limit| limit > 0) => {
                let limit_bytes = stats.bytes_limit.and_then(|limit| u64::try_from(limit).ok()).unwrap_or_default();
                Ok(MemoryPlan::of_device(limit_bytes, self.graphs.weights_bytes()))
            }
            // The device's memory is the host's.
            Ok(_) | Err(_) => MemoryPlan::of_host(),
        }
    }

    fn allocate(&mut self, layout: StateLayout, progress: &mut Progress<'_>) -> Result<(), BackendError> {
        // The old state goes before the next one comes: both may not fit.
        self.state = None;
        let programs = Programs::new(&self.graphs, layout, 1, self.platform.form);
        let buckets = Buckets::new(layout.num_slots, layout.max_batch_prefill_tokens, layout.max_total_tokens);
        let target = Target::of_client(&self.client);
        let compiler = Compiler::new(target, self.platform.compile_options(&[self.device.id()]), self.cache.clone());
        let keys = buckets.programs();
        let texts = keys.iter().map(|key| programs.print(*key)).collect::<Result<Vec<_>, _>>()?;
        let executables = compiler.compile(&self.client, &texts, progress)?;
        let executables = keys.into_iter().zip(executables).collect();
        let host = Host { client: &self.client, device: &self.device, weights: &self.weights };
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
        let host = Host { client: &self.client, device: &self.device, weights: &self.weights };
        let reports = state.launch(batch, host);
        let output = reports.and_then(|reports| reports.wait(batch));
        if output.is_err() {
            // What was donated to a failed launch is lost.
            self.state = None;
        }
        output
    }
}
