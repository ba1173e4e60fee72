//! `compile`: compiles the programs of a model for a TPU slice, on a machine without TPUs.
//!
//! Entry points: [`CompileArgs`], [`run`], and [`fit`] with its [`PlanArgs`]. No weights are read. A server on such a
//! slice, with the same plugin and settings, takes the programs from the cache that `compile` has filled. `topology`
//! parses the names of slices; `table` prints the compiler's statistics.

mod fit;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod topology;

use std::path::{Path, PathBuf};

use backend::{BackendError, ModelGraphs, Progress, StateLayout};
use clap::Args;
use devices::{DecodeAttention, Device, Quantize, tpu};
use model::models::{self, Config};
use model_files::ModelFiles;
use proto::Warmup;
use xla::{AheadOfTime, Platform, Program, ProgramFigures};

use crate::args::Dtype;
use crate::engine::limits::{self, LimitInputs};
use crate::engine::{EngineError, config_json, quantized, weight_type};
pub use fit::{FitReport, run as fit};
use topology::Slice;

/// The maximum number of names of programs in an error.
const MAX_EXAMPLES: usize = 8;

/// The programs to compile, and the folder for them.
#[derive(Debug, Clone, Args)]
pub struct CompileArgs {
    #[command(flatten)]
    pub plan: PlanArgs,

    /// Folder for the compiled programs; pass it to the server as --program-cache
    #[arg(long)]
    pub output: PathBuf,

    /// Compile only the programs with these names, such as decode_64 [default: all]
    #[arg(long, value_delimiter = ',')]
    pub programs: Vec<String>,
}

/// A model on a TPU slice.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// Model to compile: `demo`, or the path of a directory with a config.json; the weights are not needed
    #[arg(long, env)]
    pub model_id: String,

    /// Number type of the weights in memory [default: the type in config.json]
    #[arg(long, env, value_enum)]
    pub dtype: Option<Dtype>,

    /// Quantize the linear layers to int8, int4 or fp8, as --quantize of a server does [default: none]
    #[arg(long, env, value_parser = crate::args::parse_quantize)]
    pub quantize: Option<Quantize>,

    /// Attention of rows that decode, as --attention of a server: `loop`, or `mosaic`, a kernel that no TPU has run yet
    #[arg(long, env = "HILO_ATTENTION", hide = true, value_enum, default_value_t)]
    pub attention: DecodeAttention,

    /// TPU slice, such as v5e:2x4, v6e:1x1 or v5p:2x2x1; or xla-cpu, this machine's CPU through XLA
    #[arg(long)]
    pub topology: String,

    /// Number of shards; --num-shard × --devices-per-shard must be all devices of the slice [default: the number that
    /// fits]
    #[arg(long, env)]
    pub num_shard: Option<u32>,

    /// Number of devices that each shard uses
    #[arg(long, env, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub devices_per_shard: u32,

    /// PJRT plugin of the TPU: its shared library, or a folder that contains it [default: searched for, see `plugin
    /// list`]
    #[arg(long, env = "HILO_PLUGIN_PATH")]
    pub plugin_path: Option<PathBuf>,

    /// Max length of a prompt and its completion together, in tokens [default: 4096, or the model's context length if
    /// that is less]
    #[arg(long, env)]
    pub max_total_tokens: Option<u32>,

    /// Max prompt tokens of one step of the model [default: 4096, or --max-total-tokens if that is more]
    #[arg(long, env)]
    pub max_batch_prefill_tokens: Option<u32>,

    /// Size of the KV cache in tokens [default: as much as --max-batch-size sequences can use, or as the memory allows]
    #[arg(long, env)]
    pub max_batch_total_tokens: Option<u32>,

    /// Max number of sequences that run at the same time [default: 64]
    #[arg(long, env)]
    pub max_batch_size: Option<u32>,
}

/// The error of `compile` and `fit`.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The name of the topology is invalid.
    #[error("{0}")]
    Topology(String),
    /// The shards together do not have exactly as many devices as the slice.
    #[error(
        "--num-shard is {num_shard} with {devices_per_shard} device(s) each, but all {num_devices} devices of \
         {topology} share the model; leave the flag out or pass {}",
        num_devices / *devices_per_shard as usize
    )]
    NumShard {
        /// The number of shards requested.
        num_shard: u32,
        /// The number of devices of each shard.
        devices_per_shard: u32,
        /// The number of devices of the slice.
        num_devices: usize,
        /// The name of the slice.
        topology: String,
    },
    /// The weights leave no memory of a device for the states.
    #[error(
        "the weights take {} MiB on each of {num_devices} device(s), but a device of {topology} has {} MiB, of which \
         programs take 8 %; choose a slice with more chips{}",
        weights_bytes >> 20, memory_bytes >> 20,
        if *is_quantized { "" } else { ", or pass --quantize int8, int4 or fp8" }
    )]
    TooLarge {
        /// The bytes of the weights of one device.
        weights_bytes: u64,
        /// The bytes of the memory of one device.
        memory_bytes: u64,
        /// The number of devices of the slice.
        num_devices: usize,
        /// The name of the slice.
        topology: String,
        /// True if the weights are already quantized.
        is_quantized: bool,
    },
    /// Nothing reports the memory of a device.
    #[error(
        "the memory of a device of {topology} is not reported, so it is not known what fits into it; try another \
         version of the plugin with --plugin-path"
    )]
    NoMemory {
        /// The name of the slice.
        topology: String,
    },
    /// `--programs` names a program that does not exist.
    #[error("there is no program {unknown}; among the {num_known} programs of this model are {}", .examples.join(", "))]
    UnknownProgram {
        /// The unknown name.
        unknown: String,
        /// The number of programs.
        num_known: usize,
        /// The names of some programs.
        examples: Vec<String>,
    },
    /// `config.json` names no type, and `--dtype` is not given.
    #[error("config.json of {model_id} names no dtype; pass --dtype")]
    NoDtype {
        /// The model.
        model_id: String,
    },
    /// An error that a shard could report too.
    #[error(transparent)]
    Engine(#[from] Box<dyn std::error::Error + Send + Sync>),
}

/// The graphs and limits of a model on a slice.
pub(crate) struct Plan {
    pub(crate) ahead: AheadOfTime,
    pub(crate) graphs: ModelGraphs,
    pub(crate) layout: StateLayout,
    /// The types of the weights, such as `bfloat16 and int8` if matrices are quantized.
    pub(crate) types: String,
}

/// Compiles the programs, and returns a table of the compiler's statistics for each of them. A program that is already
/// in the output folder is not compiled, and has `cached` instead of statistics.
///
/// # Errors
/// When the model, the slice or the limits are invalid, there is no plugin, a program that `--programs` names does not
/// exist, or the compiler refuses a program.
pub fn run(args: &CompileArgs, progress: &mut (dyn FnMut(&str, u64, u64) + Send)) -> Result<String, CompileError> {
    let plan = Plan::new(&args.plan)?;
    let figures = plan.compile(Some(&args.output), &args.programs, progress)?;
    Ok(table::print(&plan, &args.plan, &figures))
}

impl Plan {
    /// Reads the model's configuration, builds the graphs and chooses the limits.
    pub(crate) fn new(args: &PlanArgs) -> Result<Self, CompileError> {
        let ahead = args.open()?;
        let num_devices = ahead.num_devices();
        let devices_per_shard = args.devices_per_shard;
        let is_odd = |num_shard: &u32| (*num_shard as usize) * (devices_per_shard as usize) != num_devices;
        if let Some(num_shard) = args.num_shard.filter(is_odd) {
            let topology = args.topology.clone();
            return Err(CompileError::NumShard { num_shard, devices_per_shard, num_devices, topology });
        }
        let files = ModelFiles::open(&args.model_id).map_err(engine_error)?;
        let config = Config::parse(&config_json(&files).map_err(engine_error)?).map_err(engine_error)?;
        let asked = args.dtype.and_then(weight_type);
        let dtype = asked.map_or_else(|| config.dtype(), |dtype| Ok(Some(dtype))).map_err(engine_error)?;
        let dtype = dtype.ok_or_else(|| CompileError::NoDtype { model_id: args.model_id.clone() })?;
        let model = models::build(&config, dtype, num_devices).map_err(engine_error)?;
        let graphs = quantized(ModelGraphs::of(&model).map_err(engine_error)?, args.quantize);
        let (weights_bytes, memory_bytes) = (graphs.weights_bytes(), ahead.memory_bytes());
        if ahead.memory(&graphs).available_bytes == 0 {
            let topology = args.topology.clone();
            if memory_bytes == 0 {
                return Err(CompileError::NoMemory { topology });
            }
            let is_quantized = args.quantize.is_some();
            return Err(CompileError::TooLarge { weights_bytes, memory_bytes, num_devices, topology, is_quantized });
        }
        let facts = LimitInputs {
            max_position_embeddings: config.max_position_embeddings().map_err(engine_error)?,
            vocab_size: config.vocab_size().map_err(engine_error)?,
            state_bytes: ahead.state_bytes(&graphs),
            window: graphs.window(),
            memory: ahead.memory(&graphs),
        };
        let types = args.quantize.map_or_else(|| dtype.to_string(), |quantize| format!("{dtype} and {quantize}"));
        let layout = limits::choose(&args.limits(), &facts).map_err(engine_error)?.layout;
        Ok(Self { ahead, graphs, layout, types })
    }

    /// Returns every program that a server with these limits can need.
    pub(crate) fn programs(&self) -> Result<Vec<Program>, CompileError> {
        self.ahead.programs(&self.graphs, self.layout).map_err(engine_error)
    }

    /// Compiles the programs called `names`, or all programs if `names` is empty. If `cache` is given, programs that it
    /// lacks are written to it, and the others are not compiled again.
    ///
    /// # Errors
    /// When a name is not that of a program, or the compiler refuses a program.
    pub(crate) fn compile(
        &self,
        cache: Option<&Path>,
        names: &[String],
        progress: &mut Progress<'_>,
    ) -> Result<Vec<ProgramFigures>, CompileError> {
        let cache = cache.map(Path::to_path_buf);
        let programs = self.programs()?;
        let known: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
        check_names(names, &known)?;
        let is_wanted = |name: &String| names.is_empty() || names.contains(name);
        let programs: Vec<_> = programs.into_iter().filter(|program| is_wanted(&program.name)).collect();
        self.ahead.compile(&programs, cache, progress).map_err(engine_error::<BackendError>)
    }
}

impl PlanArgs {
    fn open(&self) -> Result<AheadOfTime, CompileError> {
        let plugin_path = self.plugin_path.as_deref();
        if let Some((device, spec)) = Device::attached(&self.topology) {
            device.check_attention(self.attention).map_err(engine_error)?;
            return AheadOfTime::attached(Platform::new(device, spec), plugin_path).map_err(engine_error);
        }
        let slice = Slice::parse(&self.topology).map_err(CompileError::Topology)?;
        let platform = Platform::new(Device::TPU, &tpu::PLATFORM).with_decode_attention(self.attention);
        AheadOfTime::open(platform, plugin_path, &slice.name(), &slice.options()).map_err(engine_error)
    }

    fn limits(&self) -> Warmup {
        Warmup {
            max_total_tokens: self.max_total_tokens,
            max_batch_prefill_tokens: self.max_batch_prefill_tokens,
            max_batch_total_tokens: self.max_batch_total_tokens,
            max_batch_size: self.max_batch_size,
            ..Warmup::default()
        }
    }
}

/// Checks that all `names` are names of programs. The error has examples of the same kind, such as `decode`, if there
/// are any.
fn check_names(names: &[String], known: &[&str]) -> Result<(), CompileError> {
    let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) else { return Ok(()) };
    let kind = |name: &str| name.split('_').next().map(str::to_owned);
    let of_kind = known.iter().filter(|name| kind(name) == kind(unknown));
    let others = known.iter().filter(|name| kind(name) != kind(unknown));
    let examples = of_kind.chain(others).take(MAX_EXAMPLES).map(|name| (*name).to_owned()).collect();
    Err(CompileError::UnknownProgram { unknown: unknown.clone(), num_known: known.len(), examples })
}

fn engine_error<E: Into<EngineError>>(error: E) -> CompileError {
    CompileError::Engine(Box::new(error.into()))
}
