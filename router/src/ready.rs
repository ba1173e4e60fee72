//! The message with which the router tells the process that started it that the port is open. It goes to a file or pipe
//! of its own, because a log has filters, and drops lines that nobody reads.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The address of the server and its limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The URL for clients.
    pub url: String,
    /// The name by which clients know the model.
    pub model_id: String,
    /// The most tokens of a prompt.
    pub max_input_tokens: u32,
    /// The most tokens of a prompt and its completion together.
    pub max_total_tokens: u32,
}

impl Ready {
    /// Writes this as one line of JSON to an existing file or pipe.
    ///
    /// # Errors
    /// When the file cannot be opened or written.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let line = serde_json::to_string(self)? + "\n";
        OpenOptions::new().write(true).open(path)?.write_all(line.as_bytes())
    }

    /// Parses a line of [`Ready::write`]; returns `None` for anything else.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}
