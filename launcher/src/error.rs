//! Why a launch ended badly, and the exit status that says so.

use crate::process::Exit;

/// Everything that can go wrong in the launcher.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LauncherError {
    /// Flags that contradict each other or the machine; all of them at once.
    #[error("invalid arguments: {}", .0.join("; "))]
    Arguments(Vec<String>),
    /// Asked for and not here, or in use; all reasons at once.
    #[error("device {device}: {}", .reasons.join("; "))]
    Device { device: shard::Device, reasons: Vec<String> },
    #[error("model")]
    Model(#[from] model_files::ModelFilesError),
    #[error("listen on {address}: {source}")]
    Address { address: String, source: std::io::Error },
    #[error("no directory for the shard sockets can be written (tried {tried}); pass --shard-uds-path")]
    NoRuntimeDirectory { tried: String },
    #[error("make memory that the shards share: {0}")]
    SharedMemory(std::io::Error),
    #[error("start {name}: {source}")]
    Spawn { name: String, source: std::io::Error },
    #[error("watch for signals: {0}")]
    Signals(std::io::Error),
    #[error("{name} {exit}; last words: {last_words}")]
    ChildExited { name: String, exit: Exit, last_words: String },
    #[error("{name} did not get ready: {reason}")]
    NotReady { name: String, reason: String },
}

impl LauncherError {
    /// 2 when the arguments are to blame, 3 when the device is, 1 otherwise. `docs/exit-codes.md` has the table.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Arguments(_) | Self::Model(_) | Self::Address { .. } => 2,
            Self::Device { .. } => 3,
            Self::NoRuntimeDirectory { .. }
            | Self::SharedMemory(_)
            | Self::Spawn { .. }
            | Self::Signals(_)
            | Self::ChildExited { .. }
            | Self::NotReady { .. } => 1,
        }
    }
}
