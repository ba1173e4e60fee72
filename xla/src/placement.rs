//! The devices of a process: their ranks in the model, and their memory.
//!
//! Entry points: [`ranked_devices`], [`memory_bytes`]. As far as possible, both results depend only on the topology of
//! a slice, so that a server finds the programs that were compiled ahead of time for it.

use backend::{LocalRanks, MemoryPlan};
use pjrt::{Client, Device};

use crate::error::XlaError;

/// Returns the devices of this process with their ranks. A rank is the index of the device's id among the ids of all
/// devices that run the model, in ascending order, so ranks, programs and their keys do not depend on the order in
/// which a plugin numbers processes or lists devices.
///
/// # Errors
/// When this process has too few devices, or several processes do not drive the whole slice.
pub(super) fn ranked_devices(
    client: &Client,
    device: devices::Device,
    ranks: LocalRanks,
) -> Result<Vec<(usize, Device)>, XlaError> {
    let mut devices = client.addressable_devices();
    devices.sort_by_key(Device::id);
    let (wanted, found) = (ranks.num_local, devices.len());
    if found < wanted {
        return Err(XlaError::NoDevice { device, wanted, found });
    }
    devices.truncate(wanted);
    let local: Vec<i64> = devices.iter().map(Device::id).collect();
    // A process that runs the model alone may leave devices unused; several processes must drive all devices of the
    // slice.
    let all = if ranks.num_ranks == wanted { local.clone() } else { client.devices().iter().map(Device::id).collect() };
    if all.len() != ranks.num_ranks {
        return Err(XlaError::SliceSize { device, found: all.len(), num_ranks: ranks.num_ranks });
    }
    Ok(ranks_of(&local, &all).into_iter().zip(devices).collect())
}

/// Returns the rank of each of the device ids `local`: the number of smaller ids in `all`.
fn ranks_of(local: &[i64], all: &[i64]) -> Vec<usize> {
    local.iter().map(|id| all.iter().filter(|other| *other < id).count()).collect()
}

/// Returns the bytes of device memory to plan with: `nominal`, the memory that the topology reports, for which programs
/// are compiled ahead of time too. `limit` is what this machine's runtime reports, often a little more or less; it is
/// returned instead if it is smaller even after rounding, or if `nominal` is `None`.
pub(super) fn memory_bytes(nominal: Option<u64>, limit: Option<u64>) -> Option<u64> {
    if let (Some(nominal), Some(limit)) = (nominal, limit)
        && MemoryPlan::rounded(limit) < MemoryPlan::rounded(nominal)
    {
        tracing::warn!(
            limit_bytes = limit,
            nominal_bytes = nominal,
            "less device memory than usual, so programs compiled ahead of time may not be found"
        );
        return Some(limit);
    }
    nominal.or(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn ranks_follow_ids_whatever_the_order_of_processes() {
        // A plugin lists the devices of a 4x4 slice by process, each of 2 x 2 chips.
        let all = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
        assert_eq!(ranks_of(&[2, 3, 6, 7], &all), [2, 3, 6, 7]);
        assert_eq!(ranks_of(&[5], &all), [5]);
        // The ids of a process that runs the model alone need not begin at 0.
        assert_eq!(ranks_of(&[7, 9], &[7, 9]), [0, 1]);
    }

    #[test]
    fn memory_is_that_of_the_topology_unless_there_is_less() {
        assert_eq!(memory_bytes(Some(16 * GIB), None), Some(16 * GIB));
        assert_eq!(memory_bytes(Some(16 * GIB), Some(17 * GIB)), Some(16 * GIB));
        // Both are the same after rounding, so programs compiled for the topology are found.
        assert_eq!(memory_bytes(Some(16 * GIB + 5), Some(16 * GIB)), Some(16 * GIB + 5));
        assert_eq!(memory_bytes(Some(16 * GIB), Some(15 * GIB)), Some(15 * GIB));
        assert_eq!(memory_bytes(None, Some(15 * GIB)), Some(15 * GIB));
        assert_eq!(memory_bytes(None, None), None, "never the memory of the host");
    }
}
