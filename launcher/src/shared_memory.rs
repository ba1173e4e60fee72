//! Memory that the shards of one host share: a file without a name that every child inherits.
//!
//! Door: [`SharedMemory`]. The launcher makes the file and passes its path; only shards read and write it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use devices::{BackendKind, Device};
use rustix::fs::MemfdFlags;

use crate::error::LauncherError;

/// An empty file in memory. It counts as memory of this launch, not of `/dev/shm`, and goes away with its last process.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    file: OwnedFd,
}

impl SharedMemory {
    /// Makes the file if several shards on this host need it: they take turns when they load, and on the CPU they add
    /// up activations in it. The file must live as long as children are started. Returns `None` if no shards need it.
    ///
    /// # Errors
    /// [`LauncherError::SharedMemory`] when the system refuses the file.
    pub(crate) fn for_launch(device: Device, num_shard: u32) -> Result<Option<Self>, LauncherError> {
        if matches!(device.backend, BackendKind::Mock) || num_shard < 2 {
            return Ok(None);
        }
        // No close-on-exec, so the file descriptor has the same number in every child.
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
            let output = Command::new("/bin/sh").args(["-c", script, "sh"]).arg(memory.path()).output().unwrap();
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
