//! The command line: TGI's flags with their environment variables, and the subcommands.
//!
//! Flags that a child also takes are declared once, in the structs of that child's crate; `plan` passes them on.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::foreign::ForeignArgs;

const SHORT_END: &str = "These are the most common flags. --help shows all flags and their environment variables.";

const LONG_END: &str = "\
Exit status: 0 after a clean stop; 2 for bad arguments or configuration; 3 when the requested device is missing, is \
in use or has no plugin; 17 when a shard failed; 1 after any other failure.";

/// The heading in the help for flags about processes.
const PROCESSES: &str = "Processes";

/// The maximum number of shard processes of a host. No host has as many memories or TPU cores.
const MAX_SHARDS: i64 = 64;

/// Serves a large language model over HTTP, with the APIs of Hugging Face's text-generation-inference, OpenAI and
/// Anthropic.
#[derive(Debug, Parser)]
#[command(name = "text-generation-launcher", version, args_conflicts_with_subcommands = true, after_help = SHORT_END, after_long_help = LONG_END)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) part: Option<Part>,
    #[command(flatten)]
    pub(crate) launch: LaunchArgs,
}

/// The subcommands: the parts of child processes, which only the launcher starts, and tasks other than serving.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    /// Serves HTTP and schedules steps.
    #[command(hide = true)]
    Router(Box<ChildArgs<router::RouterArgs>>),
    /// Runs a model, or a part of it, for the router.
    #[command(hide = true)]
    Shard(Box<ChildArgs<shard::ShardArgs>>),
    /// Compiles the grammar of a request for the router, with limits of time and memory.
    #[command(hide = true)]
    TryGrammar(router::GrammarTrialArgs),
    /// Renders conversations for the router, with limits of time and memory.
    #[command(hide = true)]
    RenderChats(router::ChatRendererArgs),
    /// Compiles all programs of a model for a TPU slice; no TPU is needed
    Compile(shard::compile::CompileArgs),
    /// Checks from config.json if a model fits on a TPU slice, and shows what uses the memory
    Fit(shard::compile::PlanArgs),
    /// `fit` with the environment that libtpu needs.
    #[command(hide = true)]
    FitModel(shard::compile::PlanArgs),
    /// `compile` with the environment that libtpu needs.
    #[command(hide = true)]
    CompilePrograms(shard::compile::CompileArgs),
    /// Prints the processes that the launcher would start with these flags, but starts none
    Plan(Box<PlanArgs>),
    /// Tries a device and its plugin, and prints a page of facts and times to paste into an issue
    Probe(shard::probe::ProbeArgs),
    /// Runs the probes of `probe` from one of them on.
    #[command(hide = true)]
    ProbeDevice(crate::probe::ChildArgs),
    /// Downloads a model from the Hugging Face Hub into the cache and prints its path
    DownloadWeights(DownloadArgs),
    /// Measures the speed of a model on this machine's CPU, and compares it with the limits of the hardware
    Bench(Box<shard::speed::SpeedArgs>),
    /// Checks a server on this machine: exit status 0 if it is healthy, 1 if not
    Health(Box<crate::health::HealthArgs>),
    /// Prints the OpenAPI document of the HTTP API
    PrintSchema,
    /// Lists and downloads the PJRT plugins that run models on TPUs, GPUs, and the CPU through XLA
    Plugin(crate::plugin::PluginArgs),
}

/// The arguments of a child that the launcher starts. The child ends with the launcher.
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArgs<T: clap::Args> {
    #[command(flatten)]
    pub(crate) part: T,

    /// Process id of the launcher
    #[arg(long, hide = true)]
    pub(crate) parent_pid: Option<i32>,
}

/// The arguments of `plan`: the flags of a launch, and the directory to search for devices.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) launch: LaunchArgs,

    /// Directory to search for devices instead of `/`
    #[arg(long, default_value = "/")]
    pub(crate) sysfs_root: PathBuf,
}

/// A command that can work for devices that this machine lacks.
#[derive(Debug, Clone)]
pub(crate) enum Ahead {
    Compile(shard::compile::CompileArgs),
    Fit(shard::compile::PlanArgs),
}

impl Ahead {
    /// The hidden subcommand with which a child executes this command.
    pub(crate) fn hidden_name(&self) -> &'static str {
        match self {
            Self::Compile(_) => "compile-programs",
            Self::Fit(_) => "fit-model",
        }
    }
}

/// The arguments of a launch.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LaunchArgs {
    #[command(flatten)]
    pub(crate) model: shard::ModelArgs,

    #[command(flatten)]
    pub(crate) hub: HubArgs,

    /// Run more than one shard: true or false [default: true if --num-shard is above 1]
    #[arg(long, env, help_heading = PROCESSES)]
    pub(crate) sharded: Option<bool>,

    /// Number of shard processes of each host [default: 1]
    #[arg(long, env, help_heading = PROCESSES, value_parser = clap::value_parser!(u32).range(..=MAX_SHARDS))]
    pub(crate) num_shard: Option<u32>,

    /// Number of devices that each shard process uses; the model is split over --num-shard × --devices-per-shard
    /// devices [default: 1; for one shard on TPUs, as many of the host's devices as the model can be split over]
    #[arg(long, env, help_heading = PROCESSES, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) devices_per_shard: Option<u32>,

    /// Path of the shards' Unix sockets, to which each shard appends `-<shard>`, or tcp://host:port with a loopback
    /// address, where each shard adds its number to the port [default: a private directory, removed at the end]
    #[arg(long, env, help_heading = PROCESSES)]
    pub(crate) shard_uds_path: Option<String>,

    /// Seconds that running requests have to finish after SIGTERM, SIGINT or SIGHUP
    #[arg(long, env, help_heading = PROCESSES, default_value_t = 30, visible_alias = "graceful-termination-timeout", short_alias = 'g')]
    pub(crate) shutdown_timeout: u64,

    #[command(flatten)]
    pub(crate) slice: crate::hosts::SliceArgs,
    #[command(flatten)]
    pub(crate) http: router::HttpArgs,
    #[command(flatten)]
    pub(crate) chat: router::ChatArgs,
    #[command(flatten)]
    pub(crate) limits: router::LimitArgs,
    #[command(flatten)]
    pub(crate) batching: router::BatchingArgs,
    #[command(flatten)]
    pub(crate) foreign: ForeignArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// The folders for models from the Hugging Face Hub. `download/settings.rs` also reads the variables of the Hub's
/// Python tools.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Hugging Face Hub")]
pub(crate) struct HubArgs {
    /// Cache folder of models from the Hub, shared with the Python tools [default: HF_HUB_CACHE, or `hub` in HF_HOME]
    #[arg(long)]
    pub(crate) huggingface_hub_cache: Option<PathBuf>,

    /// Folder with the model's files, used instead of the Hub
    #[arg(long, env)]
    pub(crate) weights_cache_override: Option<PathBuf>,
}

/// The arguments of `download-weights`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DownloadArgs {
    /// Model on the Hub: organisation/name, or organisation/name:Q4_K_M for a quantization of its GGUF files
    #[arg(env)]
    pub(crate) model_id: String,

    /// Revision of the model: a branch, a tag, or a commit [default: main]
    #[arg(long, env)]
    pub(crate) revision: Option<String>,

    /// Extension of the weight files; no other is supported
    #[arg(long, default_value = ".safetensors", value_parser = [".safetensors"], hide = true)]
    pub(crate) extension: String,

    #[command(flatten)]
    pub(crate) hub: HubArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// The format and the level of the log, for all processes.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// Log one JSON object per line
    #[arg(long, env)]
    pub(crate) json_output: bool,

    /// Level of the log: error, warn, info, debug, trace, or a filter such as `info,router=debug`
    #[arg(long, env, default_value = "info", alias = "logger-level")]
    pub(crate) log_level: String,
}
