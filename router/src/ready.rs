//! The message that the router writes when its port is open, for the process that started the router. The message has a
//! file or pipe of its own, because the log may filter or drop lines.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

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

impl Ready {
    /// Writes the message as one line of JSON to an existing file or pipe.
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
