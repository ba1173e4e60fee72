//! Memory that the shards of one host share: a file without a name that every child inherits.
//!
//! Entry point: [`SharedMemory`]. The launcher creates the file and passes its path to the shards; only shards read and
//! write it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use devices::{BackendKind, Device};
use rustix::fs::MemfdFlags;

use crate::error::LauncherError;

/// A file in memory, created empty. It takes no space in `/dev/shm`, and it disappears with the last process that has
/// it open.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    file: OwnedFd,
}

impl SharedMemory {
    /// Creates the file if several shards run on this host. Through it the shards limit how many of them load a weight
    /// at the same time, and on the CPU they also exchange activations. The caller must keep the file until the last
    /// child has started. Returns `None` for a single shard and for the mock device.
    ///
    /// # Errors
    /// [`LauncherError::SharedMemory`] when the system refuses the file.
    pub(crate) fn for_launch(device: Device, num_shard: u32) -> Result<Option<Self>, LauncherError> {
        if matches!(device.backend, BackendKind::Mock) || num_shard < 2 {
            return Ok(None);
        }
        // Close-on-exec is off, so that every child inherits the file descriptor under the same number.
        let file = rustix::fs::memfd_create("text-generation-shards", MemfdFlags::empty());
        Ok(Some(Self { file: file.map_err(|error| LauncherError::SharedMemory(error.into()))? }))
    }

    /// The path under which a child finds the file.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn children_read_and_write_one_file() {
        let memory = SharedMemory::for_launch(Device::CPU, 2).unwrap().unwrap();
        let shell = |script: &str| {
            let output = test_support::output(Command::new("/bin/sh").args(["-c", script, "sh"]).arg(memory.path()));
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        shell("printf hello > \"$1\"");
        assert_eq!(shell("cat \"$1\""), "hello");
    }

    #[test]
    fn only_several_shards_of_a_model_need_it() {
        for (device, num_shard) in [(Device::CPU, 1), (Device::MOCK, 2)] {
            assert!(SharedMemory::for_launch(device, num_shard).unwrap().is_none(), "{device}");
        }
    }
}
