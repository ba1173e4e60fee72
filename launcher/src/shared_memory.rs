//! Memory that the shards of this host share: a file without a name that every child inherits.
//!
//! Door: [`SharedMemory`]. The launcher makes it and says where it is; what is in it is the shards' own affair.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use devices::Device;
use rustix::fs::MemfdFlags;

use crate::args::LaunchArgs;
use crate::error::LauncherError;

/// An empty file in memory. It counts as memory of this launch, not of `/dev/shm`, and is gone with its last process.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    file: OwnedFd,
}

impl SharedMemory {
    /// The file, where there are shards that need it: several on one host, which take turns when they load, and on the processor
    /// add up through it.
    /// It must live as long as children are started.
    ///
    /// # Errors
    /// [`LauncherError::SharedMemory`].
    pub(crate) fn for_launch(args: &LaunchArgs) -> Result<Option<Self>, LauncherError> {
        if args.model.device == Device::Mock || args.num_shard.unwrap_or(1) < 2 {
            return Ok(None);
        }
        // Without close-on-exec: the number is the same in every child.
        let file = rustix::fs::memfd_create("text-generation-shards", MemfdFlags::empty());
        Ok(Some(Self { file: file.map_err(|error| LauncherError::SharedMemory(error.into()))? }))
    }

    /// Where a child finds it.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn shared_memory(flags: &[&str]) -> Option<SharedMemory> {
        let args = Args::parse_from(["text-generation-launcher"].iter().chain(flags));
        SharedMemory::for_launch(&args.launch).unwrap()
    }

    #[test]
    fn children_read_and_write_one_file() {
        let memory = shared_memory(&["--device", "cpu", "--num-shard", "2"]).unwrap();
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
        for flags in [&["--device", "cpu"][..], &["--device", "mock", "--num-shard", "2"]] {
            assert!(shared_memory(flags).is_none(), "{flags:?}");
        }
    }
}
