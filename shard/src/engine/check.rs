//! What can be found wrong before a weight is read: types, the model's description, limits that it or the machine cannot meet.
//!
//! Door: [`check`]. What the processor could still allocate is asked before weights take their part, so whoever passes may
//! fail later, but nobody fails here who would have been served.

use backend::{LocalRanks, MemoryPlan, Processors};
use devices::plugins::Surroundings;
use devices::{BackendKind, Choice};
use model::graph::StateBytes;
use model::models::Config;
use model_files::ModelFiles;
use proto::Warmup;

use super::limits::{self, Facts};
use super::load::{Description, check_device, describe, kv_type};
use super::{EngineError, config_json, num_threads};
use crate::args::ShardArgs;

/// Memory that nothing is too large for, where only the device knows how much it has.
const UNKNOWN: MemoryPlan = MemoryPlan { available_bytes: u64::MAX, cache_percent: 100 };

/// Checks one of the shards of a launch, and what the router will ask of it.
///
/// # Errors
/// The first thing that is wrong.
pub(crate) fn check(args: &ShardArgs, wishes: &Warmup) -> Result<(), EngineError> {
    let ShardArgs { model, rank, world_size, devices_per_shard, .. } = args;
    let surroundings = Surroundings::of_process();
    let Choice { device, .. } = devices::choose(model.device, model.plugin_path.as_deref(), &surroundings);
    check_device(device, args)?;
    let num_ranks = LocalRanks::of_shard(*rank, *world_size, *devices_per_shard).num_ranks;
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
    limits::choose(wishes, &Facts { max_position_embeddings, vocab_size, state_bytes, window, memory })?;
    Ok(())
}
