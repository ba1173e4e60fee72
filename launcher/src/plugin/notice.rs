//! Lines for the user, and the sizes in them.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes one line for the user to stderr.
pub(super) fn say(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Formats a number of bytes in megabytes of 10⁶ bytes, as pip does.
pub(super) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
