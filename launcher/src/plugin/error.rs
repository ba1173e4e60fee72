//! Errors of fetching a plugin.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::ExitStatus;

/// The errors of fetching a plugin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error(
        "this machine is {arch} {os}, but plugins can be fetched only for x86_64 linux; start the server with \
         --plugin-path"
    )]
    Machine { os: String, arch: String },
    #[error("there is no cache folder, because neither XDG_CACHE_HOME nor HOME is an absolute path; set one of them")]
    NoCache,
    #[error("cannot {action} {}: {source}{}", .path.display(), cache_advice(.source))]
    Cache { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{python} cannot be run: {source}; install python3 and pip, or {}", elsewhere(.wheels))]
    NoPython { python: String, source: io::Error, wheels: Vec<&'static str> },
    #[error("{python} has no pip; install pip, or {}", elsewhere(.wheels))]
    NoPip { python: String, wheels: Vec<&'static str> },
    #[error("pip did not download {requirement} ({status}):\n{stderr}\nwithout a network, {}", elsewhere(.wheels))]
    Pip {
        requirement: String,
        status: ExitStatus,
        /// The last lines of pip's stderr, indented.
        stderr: String,
        wheels: Vec<&'static str>,
    },
    #[error("pip downloaded no {wheel}; {}", elsewhere(.wheels))]
    OtherWheel { wheel: &'static str, wheels: Vec<&'static str> },
    #[error("the wheel {} cannot be read: {source}", .path.display())]
    Wheel { path: PathBuf, source: io::Error },
    #[error("the sha256 of {} is {found}, but the pinned wheel {wheel} has {expected}; this is not the pinned wheel", .path.display())]
    Sha256 { path: PathBuf, found: String, expected: &'static str, wheel: &'static str },
    #[error("the sha256 of {} is {found}, which no pinned wheel has; the pinned wheels are {}", .path.display(), .wheels.join(", "))]
    NotPinned { path: PathBuf, found: String, wheels: Vec<&'static str> },
    #[error("the folder {} has none of the pinned wheels {}", .path.display(), .wheels.join(", "))]
    NoWheels { path: PathBuf, wheels: Vec<&'static str> },
    #[error(
        "--wheel does not name all wheels; still needed: {}; pass --wheel for each, or for a folder with all of them",
        .wheels.join(", ")
    )]
    MoreWheels { wheels: Vec<&'static str> },
    #[error("the wheel {} cannot be unpacked: {source}", .path.display())]
    Zip { path: PathBuf, source: zip::result::ZipError },
    #[error("the wheel {} has no {member}", .path.display())]
    NoMember { path: PathBuf, member: &'static str },
}

/// Returns the advice to download all pinned wheels of a plugin on another machine.
fn elsewhere(wheels: &[&str]) -> String {
    let names = wheels.join(", ");
    let target = if wheels.len() == 1 { "<path>" } else { "<folder>" };
    format!("download {names} elsewhere and pass --wheel {target}")
}

fn cache_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room, or set XDG_CACHE_HOME to a larger disk",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "; set XDG_CACHE_HOME to a writable folder",
        _ => "",
    }
}
