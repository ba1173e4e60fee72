//! The end of a child.

use std::fmt;

/// How a child ended: by itself, with an exit status, or by a signal, with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Status(i32),
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "exited with status {status}"),
            Self::Signal(9) => {
                f.write_str("was killed by signal 9 (SIGKILL; the system does that when memory runs out)")
            }
            Self::Signal(4) => f.write_str("was killed by signal 4 (SIGILL; this CPU lacks an instruction)"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
        }
    }
}
