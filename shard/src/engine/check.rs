//! The checks of a launch before any weight is read: settings that the device or the model does not support, and limits
//! that exceed the model or the machine.
//!
//! Entry point: [`check`]. The limits of the CPU, and the requested bytes of XLA-CPU's cache, are compared with the
//! memory that is available before the weights are loaded. Hence a launch that passes may still fail later, but a
//! launch that fails here would fail later too, unless memory becomes free in the meantime.

use backend::{LocalRanks, MemoryPlan, Processors};
use devices::plugins::Surroundings;
use devices::{BackendKind, Choice};
use model::graph::StateBytes;
use model::models::Config;
use model_files::ModelFiles;
use proto::Warmup;

use super::limits::{self, LimitInputs};
use super::load::{Description, check_device, describe, kv_type};
use super::{EngineError, config_json, num_threads};
use crate::args::ShardArgs;

/// A stand-in for the memory of a device, which is unknown here: no limits exceed it.
const UNKNOWN: MemoryPlan = MemoryPlan { available_bytes: u64::MAX, cache_percent: 100 };

/// Checks the arguments of one shard, and the limits that the router will request from it.
///
/// # Errors
/// The first error found.
pub(crate) fn check(args: &ShardArgs, wishes: &Warmup) -> Result<(), EngineError> {
    let ShardArgs { model, shard, num_shards, devices_per_shard, .. } = args;
    let surroundings = Surroundings::of_process();
    let Choice { device, .. } = devices::choose(model.device, model.plugin_path.as_deref(), &surroundings);
    check_device(device, args)?;
    let num_ranks = LocalRanks::of_shard(*shard, *num_shards, *devices_per_shard).num_ranks;
    let files = ModelFiles::open(&model.model_id)?;
    let config = Config::parse(&config_json(&files)?)?;
    let (state_bytes, window, memory) = match device.backend {
        BackendKind::Mock => (StateBytes::default(), None, UNKNOWN),
        BackendKind::Cpu => {
            num_threads(model.threads, &Processors::of_process())?;
            let Description { dtype, graphs, .. } = describe(&files, &config, model, num_ranks)?;
            let kv_type = kv_type(model.kv_cache_dtype, dtype);
            (cpu::state_bytes(&graphs, kv_type), graphs.window(), MemoryPlan::of_host(num_ranks)?)
        }
        BackendKind::Plugin(_) => {
            let graphs = describe(&files, &config, model, num_ranks)?.graphs;
            (StateBytes::default(), graphs.window(), UNKNOWN)
        }
    };
    if let (true, Some(asked_bytes)) = (device.uses_host_memory, wishes.kv_cache_bytes) {
        let MemoryPlan { available_bytes, .. } = MemoryPlan::of_host(num_ranks)?;
        if asked_bytes > available_bytes {
            return Err(EngineError::KvCacheMemory { asked_bytes, available_bytes });
        }
    }
    let (max_position_embeddings, vocab_size) = (config.max_position_embeddings()?, config.vocab_size()?);
    limits::choose(wishes, &LimitInputs { max_position_embeddings, vocab_size, state_bytes, window, memory })?;
    Ok(())
}
