//! Errors of backends.
//!
//! Entry points: [`BackendError`], and [`Fault`], the kind of a device's error, the same for all kinds of devices.

use std::error::Error;

use collectives::CollectiveError;
use model::weights::WeightsError;

/// An error of a backend.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum BackendError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Memory(#[from] machine::MemoryError),
    #[error("{bytes} bytes of memory cannot be allocated: {source}")]
    Allocate { bytes: u64, source: std::io::Error },
    #[error("--collective-path is missing: {num_ranks} shards of one host need a file that they share")]
    NoCollectivePath { num_ranks: usize },
    #[error("rank {rank}: {source}{}", cause(.source))]
    Collective { rank: usize, source: CollectiveError },
    #[error("a step came before the KV cache was allocated, which is a defect of this server")]
    NotAllocated,
    #[error("{source}")]
    Device { fault: Fault, source: Box<dyn Error + Send + Sync> },
}

/// The kind of a device's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The device, or the library that drives it, is not on this machine.
    Absent,
    /// The device has too little memory.
    OutOfMemory,
    /// The device, or its compiler, failed.
    Failed,
    /// A defect of the backend.
    Internal,
}

impl BackendError {
    /// Returns the error of a device.
    pub fn device(fault: Fault, source: impl Error + Send + Sync + 'static) -> Self {
        Self::Device { fault, source: Box::new(source) }
    }
}

/// Returns the underlying error of the system as text, after ": "; empty if there is none.
fn cause(error: &CollectiveError) -> String {
    error.source().map_or_else(String::new, |cause| format!(": {cause}"))
}
