//! Makes a loaded engine from arguments: reads the config and, unless the device is `mock`, builds the graphs and loads
//! the weights on the device.
//!
//! Entry point: [`load`], which connects a model to a backend. A model file names no backend, and a backend names no
//! model file.

use std::borrow::Cow;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backend::MockBackend;
use backend::{BLOCK_SIZE, Backend, LocalRanks, Membership, ModelGraphs, Place, Processors};
use cpu::{CpuBackend, CpuOptions};
use devices::plugins::{self, Surroundings};
use devices::{Asked, BackendKind, Choice, Device, Quantize};
use kernels::attention::KvType;
use model::Fingerprint;
use model::models::{self, Config};
use model::sampling::Samplers;
use model::weights::{self, Checkpoint};
use model_files::ModelFiles;
use numbers::{FloatType, Rounding};
use proto::ModelInfo;
use xla::{Platform, XlaBackend, XlaOptions};

use super::host_memory::{self, Describe};
use super::{Engine, EngineError, Progress, Work};
use crate::args::{Dtype, KvCacheDtype, ModelArgs, ShardArgs};

/// The file that describes a model in the Hugging Face layout.
const CONFIG_FILE: &str = "config.json";
const GENERATION_CONFIG_FILE: &str = "generation_config.json";

/// The maximum number of keys or tensors that one log line names.
const MAX_NAMES: usize = 4;

/// The properties of a model's weights and graphs.
struct ModelProperties {
    dtype: FloatType,
    num_parameters: u64,
    can_skip_prefix: bool,
    /// The maximum number of tokens that a token attends to, itself included; `None` if a layer has no window.
    window: Option<usize>,
    work: Work,
    /// A hash of samples of the weights, by which shards of several hosts compare their files.
    sampled: u64,
}

/// The checkpoint, number type and graphs of a model, as its files and the arguments describe them.
pub(super) struct Description {
    pub(super) checkpoint: Checkpoint,
    /// The type of the weights before quantization.
    pub(super) dtype: FloatType,
    pub(super) graphs: ModelGraphs,
    /// The keys of config.json that the model does not read, although they might change it.
    pub(super) unread_keys: Vec<String>,
}

impl Description {
    fn weights(&self) -> ModelProperties {
        let [per_token, per_logits] = [&self.graphs.decoder, &self.graphs.logits].map(|graph| graph.multiply_adds());
        ModelProperties {
            dtype: self.dtype,
            num_parameters: num_parameters(&self.graphs),
            can_skip_prefix: self.graphs.can_skip_prefix(),
            window: self.graphs.window(),
            work: Work { per_token, per_logits, has_experts: self.graphs.decoder.has_experts() },
            sampled: self.checkpoint.sampled().value(),
        }
    }
}

/// Loads the model that `args` names.
///
/// # Errors
/// When the arguments are invalid, the model cannot be found or is not supported, its files are malformed, or the
/// device fails.
pub(crate) fn load(args: &ShardArgs, progress: &mut Progress<'_>) -> Result<Engine, EngineError> {
    let ShardArgs { model, shard, num_shards, devices_per_shard, .. } = args;
    if shard >= num_shards {
        return Err(EngineError::NoSuchShard { shard: *shard, num_shards: *num_shards });
    }
    let surroundings = Surroundings::of_process();
    let Choice { device, reason } = devices::choose(model.device, model.plugin_path.as_deref(), &surroundings);
    if model.device == Asked::Auto {
        tracing::info!(%device, reason, "device chosen automatically");
    }
    check_device(device, args)?;
    let ranks = LocalRanks::of_shard(*shard, *num_shards, *devices_per_shard);
    let files = ModelFiles::open(&model.model_id)?;
    let config_json = config_json(&files)?;
    let config = Config::parse(&config_json)?;
    let generation_config = files.read_optional(GENERATION_CONFIG_FILE)?;
    let eos_token_ids = config.eos_token_ids(generation_config.as_deref())?;
    let sampling_defaults = models::sampling_defaults(generation_config.as_deref())?;
    let (backend, weights): (Box<dyn Backend>, ModelProperties) = match device.backend {
        BackendKind::Cpu => {
            let description = describe(&files, &config, model, ranks.num_ranks)?;
            log_left_out(&description);
            let describe = |model: &ModelArgs| describe(&files, &config, model, ranks.num_ranks);
            (Box::new(load_on_cpu(args, &description, &describe, progress)?), description.weights())
        }
        BackendKind::Plugin(spec) => {
            let description = describe(&files, &config, model, ranks.num_ranks)?;
            log_left_out(&description);
            let platform = Platform::new(device, spec).with_decode_attention(model.attention);
            let backend = load_with_plugin(args, platform, &description, progress)?;
            (Box::new(backend), description.weights())
        }
        BackendKind::Mock => {
            let (mock, weights) = mock(model, &config, &eos_token_ids, ranks)?;
            (Box::new(mock), weights)
        }
    };
    let weight_bytes = backend.weight_bytes();
    let info =
        ModelInfo { sampling_defaults: Some(sampling_defaults), ..info(&config, &weights, device, eos_token_ids)? };
    let info = ModelInfo { weights_bytes: weight_bytes.map_or(info.weights_bytes, |bytes| bytes.all), ..info };
    let row_bytes = weight_bytes.map_or(0, |bytes| bytes.of_row);
    let counts = [num_shards.to_le_bytes(), devices_per_shard.to_le_bytes()].concat();
    let quantize = model.quantize.map_or_else(String::new, |quantize| quantize.to_string());
    let agreed = Fingerprint::default().bytes(&config_json).bytes(info.dtype.as_bytes()).bytes(&counts);
    let agreed = agreed.bytes(quantize.as_bytes()).bytes(model.kv_cache_dtype.to_string().as_bytes());
    let agreed = agreed.bytes(model.attention.to_string().as_bytes());
    // Ranks compute some values of their own instead of exchanging them, and other instructions round differently.
    let isa = match device.backend {
        BackendKind::Cpu => kernels::isa::select(model.cpu_isa.as_deref())?.to_string(),
        BackendKind::Plugin(_) | BackendKind::Mock => String::new(),
    };
    let agreed = agreed.bytes(isa.as_bytes()).number(weights.sampled);
    let info = ModelInfo { instruction_set: isa, ..info };
    let mut samplers = Samplers::new(config.vocab_size()?);
    samplers.graph(&proto::SamplingParams::greedy())?;
    let eos_token_ids = info.eos_token_ids.iter().map(|id| *id as i32).collect();
    Ok(Engine {
        info,
        work: weights.work,
        row_bytes,
        config_hash: agreed.value(),
        eos_token_ids,
        backend,
        samplers,
        rows: None,
    })
}

/// Returns a mock of the model, and the properties of a model without weights.
fn mock(
    model: &ModelArgs,
    config: &Config,
    eos_token_ids: &[u32],
    ranks: LocalRanks,
) -> Result<(MockBackend, ModelProperties), EngineError> {
    let asked = model.dtype.and_then(weight_type);
    let dtype = asked.map_or_else(|| config.dtype(), |dtype| Ok(Some(dtype)))?.unwrap_or(FloatType::F32);
    let mock = MockBackend::new(config.vocab_size()?, eos_token_ids, ranks)
        .taking(Duration::from_micros(model.mock_step_us.unwrap_or_default()));
    let properties = ModelProperties {
        dtype,
        num_parameters: 0,
        can_skip_prefix: true,
        window: None,
        work: Work::default(),
        sampled: 0,
    };
    Ok((mock, properties))
}

/// Reads the headers of the files, but no weights, and builds the graphs of a rank.
///
/// # Errors
/// When the model is not supported, or its files are missing, cannot be read or are malformed.
pub(super) fn describe(
    files: &ModelFiles,
    config: &Config,
    model: &ModelArgs,
    num_ranks: usize,
) -> Result<Description, EngineError> {
    let (checkpoint, config) = open_text(files, config)?;
    let asked = model.dtype.and_then(weight_type);
    let dtype = match asked.map_or_else(|| config.dtype(), |dtype| Ok(Some(dtype)))? {
        Some(dtype) => dtype,
        None => checkpoint.dtype(),
    };
    let graphs = ModelGraphs::of(&models::build(&config, dtype, num_ranks)?)?;
    let unread_keys = config.unread();
    Ok(Description { checkpoint, dtype, graphs: quantized(graphs, model.quantize), unread_keys })
}

/// Opens the checkpoint, of a composite model only the part with the text model, and returns it with the configuration
/// that fits it.
fn open_text<'a>(files: &ModelFiles, config: &'a Config) -> Result<(Checkpoint, Cow<'a, Config>), EngineError> {
    let checkpoint = Checkpoint::open(files, models::quantization(config)?)?;
    let Some(towers) = config.towers() else { return Ok((checkpoint, Cow::Borrowed(config))) };
    let checkpoint = checkpoint.into_text(towers)?;
    let config = config.clone().with_head(checkpoint.has_head());
    Ok((checkpoint, Cow::Owned(config)))
}

/// Logs which keys of config.json, which tensors, and which parts of a composite's checkpoint, are not read.
fn log_left_out(Description { checkpoint, graphs, dtype: _, unread_keys }: &Description) {
    if !unread_keys.is_empty() {
        let names = unread_keys[..unread_keys.len().min(MAX_NAMES)].join(", ");
        tracing::warn!(num_keys = unread_keys.len(), first = names, "the model does not read keys of config.json");
    }
    let unread = checkpoint.unread(graphs.decoder.weights().chain(graphs.logits.weights()));
    if !unread.is_empty() {
        let names = unread[..unread.len().min(MAX_NAMES)].join(", ");
        tracing::warn!(num_tensors = unread.len(), first = names, "the model does not read tensors of the checkpoint");
    }
    let left_out = checkpoint.left_out();
    if left_out.is_empty() {
        return;
    }
    let parts: Vec<&str> = left_out.iter().map(|part| part.part).collect();
    let num_tensors: usize = left_out.iter().map(|part| part.num_tensors).sum();
    let num_bytes: usize = left_out.iter().map(|part| part.num_bytes).sum();
    tracing::info!(
        parts = parts.join(", "),
        num_tensors,
        num_bytes,
        "parts of the checkpoint are left out; images are not served"
    );
}

/// Returns `config.json`, or for a GGUF file an equivalent made from its metadata.
///
/// # Errors
/// When `config.json` cannot be read, or the GGUF file is malformed or its metadata is not supported.
pub(crate) fn config_json(files: &ModelFiles) -> Result<Cow<'static, [u8]>, EngineError> {
    let Some(gguf) = files.gguf()? else { return Ok(files.read(CONFIG_FILE)?) };
    let config = models::gguf_config(&gguf, &weights::rope_factors(&gguf)?)?;
    Ok(Cow::Owned(serde_json::Value::Object(config).to_string().into_bytes()))
}

/// Returns the numbers of ranks, from 1 to `most`, that the model can be split over; `None` if its configuration cannot
/// be read.
pub(crate) fn device_counts(model_id: &str, most: u32) -> Option<Vec<u32>> {
    let files = ModelFiles::open(model_id).ok()?;
    let config = Config::parse(&config_json(&files).ok()?).ok()?;
    let can_split = |count: &u32| models::build(&config, FloatType::F32, *count as usize).is_ok();
    Some((1..=most).filter(can_split).collect())
}

/// Refuses a kind of attention, numbers of ranks, and number types that `device` does not support.
pub(super) fn check_device(device: Device, args: &ShardArgs) -> Result<(), EngineError> {
    let ModelArgs { quantize, kv_cache_dtype, attention, .. } = args.model;
    device.check_attention(attention)?;
    device.check_ranks(args.num_shards, args.devices_per_shard)?;
    quantize.map_or(Ok(()), |quantize| device.check_quantize(quantize))?;
    if kv_cache_dtype != KvCacheDtype::Auto && !device.takes_kv_cache_dtype {
        return Err(EngineError::KvCacheDtype { kv_cache_dtype, device });
    }
    Ok(())
}

fn load_on_cpu(
    args: &ShardArgs,
    description: &Description,
    describe: &Describe<'_>,
    progress: &mut Progress<'_>,
) -> Result<CpuBackend, EngineError> {
    let Description { checkpoint, dtype, graphs, .. } = description;
    let ModelArgs { cpu_isa, kv_cache_dtype, threads, .. } = &args.model;
    let membership = membership(args)?;
    if membership.num_on_host() < membership.num_ranks() && args.peer_sockets.is_none() {
        return Err(EngineError::NoPeerSockets);
    }
    host_memory::check(&membership, &args.model, description, describe)?;
    let isa = kernels::isa::select(cpu_isa.as_deref())?;
    let kv_type = kv_type(*kv_cache_dtype, *dtype);
    let processors = Processors::of_process();
    let num_threads = num_threads(*threads, &processors)?;
    tracing::info!(%isa, num_threads, kv_cache_dtype = %kv_type, "cpu kernels");
    let options = CpuOptions { membership, num_threads, processors, kv_type };
    let mut progress = |done, total| progress("load weights", done, total);
    Ok(CpuBackend::load(graphs, checkpoint, options, &mut progress)?)
}

fn load_with_plugin(
    args: &ShardArgs,
    platform: Platform,
    Description { checkpoint, graphs, .. }: &Description,
    progress: &mut Progress<'_>,
) -> Result<XlaBackend, EngineError> {
    let options = XlaOptions {
        ranks: LocalRanks::of_shard(args.shard, args.num_shards, args.devices_per_shard),
        membership: membership(args)?,
        plugin_path: args.model.plugin_path.clone(),
        program_cache: program_cache(args.model.program_cache.as_deref(), &Surroundings::of_process()),
    };
    let mut progress = |done, total| progress("load weights", done, total);
    Ok(XlaBackend::load(platform, options, graphs, checkpoint, &mut progress)?)
}

/// Joins the groups of the shards on this host and on all hosts.
///
/// # Errors
/// When the shards on this host do not divide all shards, or a group cannot be joined.
pub(super) fn membership(args: &ShardArgs) -> Result<Membership, EngineError> {
    let ShardArgs { shard, num_shards, .. } = *args;
    let on_host = args.shards_on_host.unwrap_or(num_shards);
    if on_host == 0 || !num_shards.is_multiple_of(on_host) {
        return Err(EngineError::ShardsOnHost { on_host, num_shards });
    }
    Ok(Membership::join(Place {
        all: LocalRanks::of_shard(shard, num_shards, 1),
        on_host: LocalRanks::of_shard(shard % on_host, on_host, 1),
        path: args.collective_path.as_deref(),
        sockets: args.peer_sockets.as_ref().map(|sockets| sockets.0.as_slice()),
    })?)
}

/// Returns the number of threads that all ranks have together: as requested, else one per core, at most as many as this
/// process may use.
///
/// # Errors
/// When more threads are requested than this process may use.
pub(crate) fn num_threads(asked: Option<NonZero<usize>>, processors: &Processors) -> Result<usize, EngineError> {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    match asked.map_or_else(|| processors.num_threads(available), usize::from) {
        asked if asked > available => Err(EngineError::Threads { asked, available }),
        num_threads => Ok(num_threads),
    }
}

/// Returns the type of keys and values on the CPU: as requested, else `weights`, the type of the weights before
/// quantization.
pub(super) fn kv_type(asked: KvCacheDtype, weights: FloatType) -> KvType {
    match (asked, weights) {
        (KvCacheDtype::F32, _) | (KvCacheDtype::Auto, FloatType::F32) => KvType::F32,
        (KvCacheDtype::F16, _) | (KvCacheDtype::Auto, FloatType::F16) => KvType::F16,
        (KvCacheDtype::Bf16, _) | (KvCacheDtype::Auto, FloatType::Bf16) => KvType::Bf16,
        (KvCacheDtype::Int8, _) => KvType::Int8,
    }
}

/// Returns the graphs with matrices quantized as requested.
pub(crate) fn quantized(graphs: ModelGraphs, quantize: Option<Quantize>) -> ModelGraphs {
    match quantize {
        None => graphs,
        Some(Quantize::Int8) => graphs.quantized(Rounding::Int8),
        Some(Quantize::Int4) => graphs.quantized(Rounding::Int4),
        Some(Quantize::Fp8) => graphs.quantized(Rounding::Fp8),
    }
}

/// Returns the folder of compiled programs: as requested, else `programs` next to the folder of the plugins. `None` if
/// the user turns the cache off or has no cache folder.
fn program_cache(asked: Option<&Path>, surroundings: &Surroundings) -> Option<PathBuf> {
    match asked {
        Some(folder) if folder == Path::new("none") => None,
        Some(folder) => Some(folder.to_path_buf()),
        None => plugins::cache_folder(surroundings).map(|plugins| plugins.with_file_name("programs")),
    }
}

fn num_parameters(graphs: &ModelGraphs) -> u64 {
    let sizes = graphs.weights().into_iter().map(|spec| spec.shape.iter().product::<usize>() as u64);
    sizes.fold(0, u64::saturating_add)
}

fn info(
    config: &Config,
    weights: &ModelProperties,
    device: Device,
    eos_token_ids: Vec<u32>,
) -> Result<ModelInfo, EngineError> {
    let ModelProperties { dtype, num_parameters, can_skip_prefix, window, work: _, sampled: _ } = weights;
    Ok(ModelInfo {
        architecture: config.architecture()?.to_owned(),
        dtype: dtype.name().to_owned(),
        device: device.to_string(),
        num_parameters: *num_parameters,
        weights_bytes: num_parameters.saturating_mul(dtype.size_bytes() as u64),
        vocab_size: config.vocab_size()? as u32,
        max_position_embeddings: u32::try_from(config.max_position_embeddings()?).unwrap_or(u32::MAX),
        eos_token_ids,
        block_size: BLOCK_SIZE as u32,
        sampling_defaults: None,
        can_skip_prefix: *can_skip_prefix,
        window: window.and_then(|window| u32::try_from(window).ok()),
        instruction_set: String::new(),
    })
}

/// Returns the type that is asked for, or `None` if config.json determines it.
pub(crate) fn weight_type(dtype: Dtype) -> Option<FloatType> {
    match dtype {
        Dtype::Auto => None,
        Dtype::Float32 => Some(FloatType::F32),
        Dtype::Float16 => Some(FloatType::F16),
        Dtype::Bfloat16 => Some(FloatType::Bf16),
    }
}
