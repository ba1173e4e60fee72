//! The memory that a rank could still allocate for its states.
//!
//! Entry points: [`MemoryPlan::of_host`], a share of the memory that is available on the machine, within the limits of
//! this process's control groups; [`MemoryPlan::of_device`], computed from a device's limit and the bytes of the
//! weights.

use crate::BackendError;

/// Memory for one rank's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The bytes that this rank could still allocate.
    pub available_bytes: u64,
    /// The share of these bytes, in percent, that the KV cache gets if the user sets no size for it.
    pub cache_percent: u64,
}

/// The share of a device's memory for programs and their scratch memory, in percent.
const PROGRAMS_PERCENT: u64 = 8;

/// A device's memory is rounded down to a multiple of this: about 1/64 of the memory of a TPU v5e.
const DEVICE_STEP_BYTES: u64 = 256 << 20;

impl MemoryPlan {
    /// Returns the share of each of `num_ranks` ranks in the host's available memory. By default the KV cache gets only
    /// half of the share, because other processes use the host's memory too.
    ///
    /// # Errors
    /// When the kernel does not report the machine's memory.
    pub fn of_host(num_ranks: usize) -> Result<Self, BackendError> {
        Ok(Self { available_bytes: machine::available_bytes()? / num_ranks as u64, cache_percent: 50 })
    }

    /// Returns what is left of a device's `limit_bytes` after programs and the weights, `weights_bytes`.
    pub fn of_device(limit_bytes: u64, weights_bytes: u64) -> Self {
        let usable = Self::rounded(limit_bytes) / 100 * (100 - PROGRAMS_PERCENT);
        Self { available_bytes: usable.saturating_sub(weights_bytes), cache_percent: 100 }
    }

    /// Returns a device's memory rounded down, so that equal devices get the same programs: programs depend on the size
    /// of the KV cache, and the runtimes of two machines rarely report exactly the same memory.
    pub fn rounded(limit_bytes: u64) -> u64 {
        limit_bytes / DEVICE_STEP_BYTES * DEVICE_STEP_BYTES
    }
}
