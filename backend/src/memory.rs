//! The memory that a rank could still allocate for its states.
//!
//! Entry points: [`MemoryPlan::of_host`], a share of the machine's available memory or of the rest of the control
//! group's limit, whichever is smaller; [`MemoryPlan::of_device`], computed from a device's limit and the bytes of the
//! weights.

use std::fs;

use crate::BackendError;

/// Memory for one rank's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The bytes that this rank could still allocate.
    pub available_bytes: u64,
    /// The share of these bytes, in percent, that the KV cache gets if the user sets no size for it.
    pub cache_percent: u64,
}

const MEMINFO: &str = "/proc/meminfo";
/// The files that contain the limit and the use of the control group (cgroup): version 2, then version 1.
const CGROUP_FILES: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
];

/// The share of a device's memory for programs and their scratch memory, in percent.
const PROGRAMS_PERCENT: u64 = 8;

/// A device's memory is rounded down to a multiple of this: about 1/64 of the memory of a TPU v5e.
const DEVICE_STEP_BYTES: u64 = 256 << 20;

impl MemoryPlan {
    /// Returns the share of each of `num_ranks` ranks in the host's available memory. By default the KV cache gets only
    /// half of the share, because other processes use the host's memory too.
    ///
    /// # Errors
    /// When `/proc/meminfo` cannot be read.
    pub fn of_host(num_ranks: usize) -> Result<Self, BackendError> {
        Ok(Self { available_bytes: available_host_bytes()? / num_ranks as u64, cache_percent: 50 })
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

/// Returns an estimate of the bytes that could be allocated without swapping or being killed.
///
/// # Errors
/// When `/proc/meminfo` cannot be read.
pub(super) fn available_host_bytes() -> Result<u64, BackendError> {
    let meminfo = fs::read_to_string(MEMINFO).map_err(|source| BackendError::Memory { path: MEMINFO, source })?;
    let left_in_group =
        CGROUP_FILES.iter().filter_map(|(limit, usage)| Some(number(limit)?.saturating_sub(number(usage)?)));
    Ok(left_in_group.chain(mem_available(&meminfo)).min().unwrap_or(0))
}

/// Returns the number in a file, or `None` if the file is missing or contains something else, such as `max`.
fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       16000 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(mem_available(text), Some(2 << 20));
        assert_eq!(mem_available("MemTotal: 5 kB\n"), None);
    }

    #[test]
    fn this_machine_has_some() {
        assert!(available_host_bytes().unwrap() > 0);
    }
}
