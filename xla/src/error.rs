//! Errors of devices with PJRT plugins.

use backend::{BackendError, Fault};
use devices::Device;
use devices::plugins::PluginError;
use model::graph::GraphError;
use model::weights::WeightsError;

/// An error of a device with a PJRT plugin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum XlaError {
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error("{device}: {source}")]
    Device { device: Device, source: pjrt::Error },
    #[error("topology {name} cannot be used: {source}")]
    Topology { name: String, source: pjrt::Error },
    #[error("{device}: the plugin finds {found} device(s) on this machine, but this process needs {wanted}")]
    NoDevice { device: Device, wanted: usize, found: usize },
    #[error("{device}: the plugin does not report the memory of its devices; use the pinned version of the plugin")]
    NoMemoryLimit { device: Device },
    #[error("{device}: the slice has {found} device(s), but the shards drive {num_ranks}; they must drive all of them")]
    SliceSize { device: Device, found: usize, num_ranks: usize },
    #[error("the router assigns {found} device(s) to {num_ranks} ranks, which is a defect of this server")]
    AssignmentLength { found: usize, num_ranks: usize },
    #[error(
        "the router assigns device {assigned} to rank {rank}, whose weights are on device {device}, which is a defect \
         of this server"
    )]
    Assignment { rank: usize, assigned: i64, device: i64 },
    #[error("a thread for {work} cannot be started: {source}")]
    Thread { work: &'static str, source: std::io::Error },
    #[error("a program cannot be written as StableHLO, which is a defect of this server: {0}")]
    Graph(#[from] GraphError),
    #[error("program or transfer {program:?} failed: {source}")]
    Program { program: String, source: pjrt::Error },
    #[error(
        "program {program} updates only {alias_bytes} of {donated_bytes} bytes of the KV cache and token history in \
         place; the compiler would copy the rest in every step"
    )]
    NotInPlace { program: String, alias_bytes: u64, donated_bytes: u64 },
    #[error("program {program}: the optimised program cannot be read: {source}")]
    Hlo { program: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl XlaError {
    fn fault(&self) -> Fault {
        match self {
            Self::Plugin(_) | Self::NoDevice { .. } => Fault::Absent,
            Self::Program { source, .. } | Self::Device { source, .. }
                if source.code() == Some(pjrt::Code::ResourceExhausted) =>
            {
                Fault::OutOfMemory
            }
            Self::Device { .. }
            | Self::Topology { .. }
            | Self::NoMemoryLimit { .. }
            | Self::SliceSize { .. }
            | Self::AssignmentLength { .. }
            | Self::Assignment { .. }
            | Self::Program { .. }
            | Self::NotInPlace { .. } => Fault::Failed,
            Self::Thread { .. } | Self::Graph(_) | Self::Hlo { .. } | Self::Backend(_) => Fault::Internal,
        }
    }
}

impl From<WeightsError> for XlaError {
    fn from(error: WeightsError) -> Self {
        Self::Backend(error.into())
    }
}

impl From<XlaError> for BackendError {
    fn from(error: XlaError) -> Self {
        match error {
            XlaError::Backend(error) => error,
            error => Self::device(error.fault(), error),
        }
    }
}
