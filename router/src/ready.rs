//! The messages that the router writes for the process that started it: it wants its port, which the other process may
//! hold until then; its port is open; and, from its start to its end, it lives. They have a file or pipe of their own,
//! because the log may filter or drop lines.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use liveness::BEAT_INTERVAL;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// The address of the server, its model and its limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The URL for clients.
    pub url: String,
    /// The name by which clients know the model.
    pub model_id: String,
    /// The maximum number of tokens in a prompt.
    pub max_input_tokens: u32,
    /// The maximum number of tokens in a prompt and its completion together.
    pub max_total_tokens: u32,
}

/// The line with which the router asks for its port.
pub const PORT_WANTED: &str = "port wanted\n";

/// The line of a sign of life.
pub const BEAT: &str = "beat\n";

/// Writes a sign of life once in each [`BEAT_INTERVAL`], if `path` is a pipe. Returns when nobody can read the pipe any
/// more. A reader that only stops reading loses beats, and the router goes on.
pub(crate) async fn beat(path: PathBuf) {
    // The pipe is opened again, so the flag does not hold for other writers.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let Ok(mut pipe) = OpenOptions::new().write(true).custom_flags(flags).open(path) else { return };
    if !pipe.metadata().is_ok_and(|file| file.file_type().is_fifo()) {
        return;
    }
    loop {
        match pipe.write_all(BEAT.as_bytes()) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return,
            Ok(()) | Err(_) => tokio::time::sleep(BEAT_INTERVAL).await,
        }
    }
}

/// Writes [`PORT_WANTED`] to an existing file or pipe.
///
/// # Errors
/// When the file cannot be opened or written.
pub(crate) fn ask_for_port(path: &Path) -> io::Result<()> {
    write(path, PORT_WANTED)
}

fn write(path: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(line.as_bytes())
}

impl Ready {
    /// Writes the message as one line of JSON to an existing file or pipe.
    ///
    /// # Errors
    /// When the file cannot be opened or written.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        write(path, &(serde_json::to_string(self)? + "\n"))
    }

    /// Parses a line of [`Ready::write`]; returns `None` for anything else.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}
