//! Errors: the plugin reports one, the plugin lacks a function, or the caller's arguments do not match.

use std::error::Error as _;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Any failure of this crate. Cheap to clone, because several listeners may get the error of one event.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The plugin reported an error.
    #[error("{function}: {code}: {message}")]
    Pjrt {
        /// The C function, or the one that made the event.
        function: &'static str,
        /// The kind of error.
        code: Code,
        /// The plugin's message.
        message: String,
    },
    /// The file cannot be loaded as a library, or is not a PJRT plugin.
    #[error("cannot open PJRT plugin {}: {}", path.display(), loader_words(path, source))]
    Open {
        /// The path of the file.
        path: PathBuf,
        /// The loader's error.
        source: Arc<libloading::Error>,
    },
    /// The library was loaded, but its function table cannot be used.
    #[error("{} is not a usable PJRT plugin: {message}", path.display())]
    Table {
        /// The path of the file.
        path: PathBuf,
        /// The problem with the table.
        message: String,
    },
    /// The plugin lacks this function: its API is too old, or it leaves the function out.
    #[error("the plugin has no {function} (its PJRT API is {}.{})", version.0, version.1)]
    Missing {
        /// The C function.
        function: &'static str,
        /// The major and minor version of the plugin's API.
        version: (i32, i32),
    },
    /// The caller's values contradict each other or the program. The plugin was not called.
    #[error("{0}")]
    Arguments(String),
    /// The number of an element type that this crate does not support.
    #[error(
        "element type {0} of the PJRT header is not supported, only pred, s4, s8, s32, u8, u32, f8e4m3fn, f16, bf16, f32"
    )]
    ElementType(i32),
    /// The plugin returned something that its contract excludes.
    #[error("{function}: the plugin returned {what}")]
    Contract {
        /// The C function.
        function: &'static str,
        /// A description of what it returned.
        what: &'static str,
    },
}

impl Error {
    /// The plugin's code, if the plugin reported the error.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Pjrt { code, .. } => Some(*code),
            Self::Open { .. }
            | Self::Table { .. }
            | Self::Missing { .. }
            | Self::Arguments(_)
            | Self::ElementType(_)
            | Self::Contract { .. } => None,
        }
    }

    /// True if the plugin cannot do this at all: the function is missing, or it returned [`Code::Unimplemented`].
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Missing { .. }) || self.code() == Some(Code::Unimplemented)
    }
}

/// The kinds of errors that a plugin reports: absl's status codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The work was cancelled.
    Cancelled,
    /// Unknown, and every number that is not listed.
    Unknown,
    /// The program or an argument is wrong.
    InvalidArgument,
    /// The time limit was exceeded.
    DeadlineExceeded,
    /// The object does not exist.
    NotFound,
    /// The object already exists.
    AlreadyExists,
    /// The caller may not do this.
    PermissionDenied,
    /// A resource is used up, mostly memory.
    ResourceExhausted,
    /// The call is not allowed in the present state.
    FailedPrecondition,
    /// The work was aborted.
    Aborted,
    /// A value is out of its range.
    OutOfRange,
    /// The plugin cannot do this.
    Unimplemented,
    /// A bug in the plugin or the compiler.
    Internal,
    /// Temporarily unavailable.
    Unavailable,
    /// Data was lost or damaged.
    DataLoss,
    /// The caller is not authenticated.
    Unauthenticated,
}

/// The names of the codes, in the order of their numbers in the header, which start at 1.
const CODES: [(Code, &str); 16] = [
    (Code::Cancelled, "cancelled"),
    (Code::Unknown, "unknown"),
    (Code::InvalidArgument, "invalid argument"),
    (Code::DeadlineExceeded, "deadline exceeded"),
    (Code::NotFound, "not found"),
    (Code::AlreadyExists, "already exists"),
    (Code::PermissionDenied, "permission denied"),
    (Code::ResourceExhausted, "resource exhausted"),
    (Code::FailedPrecondition, "failed precondition"),
    (Code::Aborted, "aborted"),
    (Code::OutOfRange, "out of range"),
    (Code::Unimplemented, "unimplemented"),
    (Code::Internal, "internal"),
    (Code::Unavailable, "unavailable"),
    (Code::DataLoss, "data loss"),
    (Code::Unauthenticated, "unauthenticated"),
];

impl Code {
    /// The code with this number in the header.
    pub(crate) fn from_number(number: i32) -> Self {
        let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        index.and_then(|index| CODES.get(index)).map_or(Self::Unknown, |(code, _)| *code)
    }

    /// The number of the code in the header.
    pub(crate) fn number(self) -> i32 {
        self as i32 + 1
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CODES[*self as usize].1)
    }
}

/// The loader's message without the path at its start, which our message has already.
fn loader_words(path: &Path, error: &libloading::Error) -> String {
    let words = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    words.strip_prefix(&format!("{}: ", path.display())).map_or_else(|| words.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_numbers_of_the_header() {
        assert_eq!(Code::from_number(1), Code::Cancelled);
        assert_eq!(Code::from_number(3), Code::InvalidArgument);
        assert_eq!(Code::from_number(12), Code::Unimplemented);
        assert_eq!(Code::from_number(16), Code::Unauthenticated);
        for number in [i32::MIN, -1, 0, 17, i32::MAX] {
            assert_eq!(Code::from_number(number), Code::Unknown);
        }
        for (index, (code, name)) in CODES.iter().enumerate() {
            assert_eq!(*code as usize, index);
            assert_eq!(Code::from_number(code.number()), *code);
            assert_eq!(code.to_string(), *name);
        }
    }
}
