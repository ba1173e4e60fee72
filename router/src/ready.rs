//! What the router tells whoever started it, once, when its port is open: on a way of its own, because a log has
//! filters, and lines that nobody reads are dropped.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Where the server is and what it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Where clients come in.
    pub url: String,
    /// What clients know the model by.
    pub model_id: String,
    /// Tokens of a prompt.
    pub max_input_tokens: u32,
    /// Tokens of a prompt and what is made of it.
    pub max_total_tokens: u32,
}

impl Ready {
    /// Writes this as one line of JSON to a file or pipe that exists.
    ///
    /// # Errors
    /// When it cannot be opened or written.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let line = serde_json::to_string(self)? + "\n";
        OpenOptions::new().write(true).open(path)?.write_all(line.as_bytes())
    }

    /// Reads what [`Ready::write`] wrote; `None` for anything else.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}
