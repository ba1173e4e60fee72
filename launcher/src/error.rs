//! Errors of a launch, and the exit status of each.

use proto::exit_status;

use crate::download::HubError;
use crate::event::ChildId;
use crate::exit::Exit;

/// The errors of a launch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LauncherError {
    /// Flags or variables that are invalid, or contradict each other or the machine. The list contains the problems
    /// found.
    #[error("invalid arguments: {}", .0.join("; "))]
    Arguments(Vec<String>),
    /// A device that cannot be used. The list contains the reasons found.
    #[error("device {device}: {}", .reasons.join("; "))]
    Device { device: devices::Device, reasons: Vec<String> },
    #[error("model")]
    Model(#[from] model_files::ModelFilesError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Router(#[from] Box<router::RouterError>),
    #[error(transparent)]
    Shard(#[from] shard::CheckError),
    #[error(transparent)]
    Listen(#[from] router::ListenError),
    #[error(transparent)]
    KvEvents(#[from] router::KvEventsError),
    #[error(
        "no writable directory for the sockets of the shards was found (tried {tried}); pass a path with --shard-uds-path"
    )]
    NoRuntimeDirectory { tried: String },
    #[error("cannot listen for the other hosts of the slice at {host}: {source}; --slice-port sets the port")]
    Door { host: String, source: std::io::Error },
    #[error("the router has no address for a shard of another host: {0}")]
    Relay(Box<endpoint::ListenError>),
    /// Hosts that do not belong together.
    #[error("the slice cannot be assembled: {0}")]
    SliceRefused(String),
    /// Hosts that are missing, have ended or are cut off.
    #[error("{0}")]
    SliceLost(String),
    #[error("the memory that the shards share cannot be created: {0}")]
    SharedMemory(std::io::Error),
    #[error("{name} cannot be started: {source}")]
    Spawn { name: String, source: std::io::Error },
    #[error("the handlers of SIGINT, SIGTERM and SIGHUP cannot be installed: {0}")]
    Signals(std::io::Error),
    #[error("{id} {exit}; its last log lines: {last_words}")]
    ChildExited { id: ChildId, exit: Exit, last_words: String },
    #[error("{id} did not become ready: {reason}")]
    NotReady { id: ChildId, reason: String },
    #[error("{id} gave no sign of life for {seconds} s", seconds = liveness::SILENCE_DEADLINE.as_secs())]
    Silent { id: ChildId },
    #[error("{error}; {stopped} was stopped by a signal such as SIGSTOP or by a debugger")]
    Stopped { error: Box<Self>, stopped: String },
}

/// Returns the error and its causes as one text. A cause that the text already contains is not repeated.
pub(crate) fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |error| error.source()) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

impl LauncherError {
    /// The launcher's exit status, one of [`exit_status`]. If a child failed with one of these statuses, the launcher
    /// passes it on. `docs/exit-codes.md` has the table.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Arguments(_)
            | Self::Model(_)
            | Self::Router(_)
            | Self::Shard(_)
            | Self::Listen(_)
            | Self::Door { .. }
            | Self::SliceRefused(_)
            | Self::KvEvents(_) => exit_status::CONFIGURATION,
            Self::SliceLost(_) | Self::Silent { .. } => exit_status::DEVICE,
            Self::Hub(error) => error.exit_status(),
            Self::Device { .. } => exit_status::NO_DEVICE,
            Self::NoRuntimeDirectory { .. }
            | Self::SharedMemory(_)
            | Self::Spawn { .. }
            | Self::Signals(_)
            | Self::Relay(_) => exit_status::FAILURE,
            Self::ChildExited { exit: Exit::Status(status), .. } => match u8::try_from(*status) {
                Ok(status @ (exit_status::CONFIGURATION | exit_status::NO_DEVICE | exit_status::DEVICE)) => status,
                Ok(_) | Err(_) => exit_status::FAILURE,
            },
            Self::ChildExited { id: ChildId::Shard(_), exit: Exit::Signal(_), .. }
            | Self::NotReady { id: ChildId::Shard(_), .. } => exit_status::DEVICE,
            Self::ChildExited { id: ChildId::Router, exit: Exit::Signal(_), .. }
            | Self::NotReady { id: ChildId::Router, .. } => exit_status::FAILURE,
            Self::Stopped { error, stopped: _ } => error.exit_status(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let told = LauncherError::Spawn { name: "shard-0".into(), source: std::io::Error::other("no room") };
        insta::assert_snapshot!(text(&told), @"shard-0 cannot be started: no room");
        let path = "/nowhere".into();
        let apart =
            LauncherError::Model(model_files::ModelFilesError::Read { path, source: std::io::Error::other("x") });
        insta::assert_snapshot!(text(&apart), @"model: /nowhere cannot be read: x");
    }
}
