//! What can go wrong: the plugin says so, the plugin lacks a function, or the caller's arguments do not fit.

use std::error::Error as _;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Any failure of this crate. Cheap to clone, since one failed event may be told to several listeners.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The plugin refused or failed.
    #[error("{function}: {code}: {message}")]
    Pjrt {
        /// The C function, or where the event came from.
        function: &'static str,
        /// Its kind.
        code: Code,
        /// The plugin's words.
        message: String,
    },
    /// The file is not a library that can be loaded, or not a PJRT plugin.
    #[error("cannot open PJRT plugin {}: {}", path.display(), loader_words(path, source))]
    Open {
        /// The file.
        path: PathBuf,
        /// The loader's words.
        source: Arc<libloading::Error>,
    },
    /// The library was loaded, but its table of functions cannot be used.
    #[error("{} is not a usable PJRT plugin: {message}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The plugin is too old for, or chose to leave out, this function.
    #[error("the plugin has no {function} (its PJRT API is {}.{})", version.0, version.1)]
    Missing {
        /// The C function.
        function: &'static str,
        /// Major and minor version of the plugin's API.
        version: (i32, i32),
    },
    /// The caller's values do not fit each other or the program; the plugin was not asked.
    #[error("{0}")]
    Arguments(String),
    /// The plugin holds values of a type that this crate does not know.
    #[error(
        "element type {0} of the PJRT header is not supported, only pred, s4, s8, s32, u8, u32, f8e4m3fn, f16, bf16, f32"
    )]
    ElementType(i32),
    /// The plugin returned something that its contract excludes.
    #[error("{function}: the plugin returned {what}")]
    Contract {
        /// The C function.
        function: &'static str,
        /// What it returned.
        what: &'static str,
    },
}

impl Error {
    /// The plugin's code, if the plugin spoke.
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

    /// Whether the plugin cannot do this at all: the function is missing, or it answered [`Code::Unimplemented`].
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Missing { .. }) || self.code() == Some(Code::Unimplemented)
    }
}

/// Kinds of errors a plugin reports: absl's status codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// Cancelled.
    Cancelled,
    /// Unknown, and every number that is not listed.
    Unknown,
    /// The program or an argument is wrong.
    InvalidArgument,
    /// Too late.
    DeadlineExceeded,
    /// No such thing.
    NotFound,
    /// It is there already.
    AlreadyExists,
    /// Not allowed.
    PermissionDenied,
    /// Out of memory, mostly.
    ResourceExhausted,
    /// Not now, not in this state.
    FailedPrecondition,
    /// Given up.
    Aborted,
    /// Outside of what is valid.
    OutOfRange,
    /// The plugin cannot do it.
    Unimplemented,
    /// A bug of the plugin or the compiler.
    Internal,
    /// Try again later.
    Unavailable,
    /// Lost or damaged data.
    DataLoss,
    /// Who asks is not known.
    Unauthenticated,
}

/// Numbers of the header, in order from 1.
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

    /// Its number in the header.
    pub(crate) fn number(self) -> i32 {
        self as i32 + 1
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CODES[*self as usize].1)
    }
}

/// What the system's loader says beyond the path, which stands before it.
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
