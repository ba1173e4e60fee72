//! Why a backend cannot do what it was told.

use collectives::CollectiveError;

use crate::args::Device;
use crate::graph::GraphError;
use crate::plugins::PluginError;
use crate::weights::WeightsError;

/// Why a backend cannot do what it was told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackendError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("start {num_threads} compute threads: {source}")]
    Threads { num_threads: usize, source: rayon::ThreadPoolBuildError },
    #[error("compute: {}", first_line(.0))]
    Compute(#[from] candle_core::Error),
    #[error("read {path}: {source}")]
    Memory { path: &'static str, source: std::io::Error },
    #[error("allocate {bytes} bytes: {source}")]
    Allocate { bytes: u64, source: std::io::Error },
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error("{device}: {source}")]
    Device { device: Device, source: ::pjrt::Error },
    #[error("topology {name}: {source}")]
    Topology { name: String, source: ::pjrt::Error },
    #[error("{device}: the plugin has {found} device(s) on this machine, not {wanted}")]
    NoDevice { device: Device, wanted: usize, found: usize },
    #[error("the assignment has {found} devices for {num_ranks} ranks")]
    AssignmentLength { found: usize, num_ranks: usize },
    #[error("the assignment gives rank {rank} device {assigned}, but its weights are on device {device}")]
    Assignment { rank: usize, assigned: i64, device: i64 },
    #[error("start a compiler thread: {source}")]
    CompileThread { source: std::io::Error },
    #[error("print a program: {0}")]
    Graph(#[from] GraphError),
    #[error("program {program}: {source}")]
    Program { program: String, source: ::pjrt::Error },
    #[error(
        "program {program} keeps {alias_bytes} bytes of the KV cache and token history in place, not {donated_bytes}: the compiler \
         would copy them in every step"
    )]
    NotInPlace { program: String, alias_bytes: u64, donated_bytes: u64 },
    #[error("program {program}: the optimised program cannot be read: {source}")]
    Hlo { program: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("--collective-path is missing: {num_ranks} shards of one host need a file that they share")]
    NoCollectivePath { num_ranks: usize },
    #[error("rank {rank}: {source}{}", cause(.source))]
    Collective { rank: usize, source: CollectiveError },
    #[error("step before the KV cache was allocated")]
    NotAllocated,
}

/// Candle's messages are followed by a backtrace where `RUST_BACKTRACE` is set.
fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// What the system said, where it was asked.
fn cause(error: &CollectiveError) -> String {
    std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"))
}
