//! The errors of this crate, and the codes of a plugin's errors.

use std::error::Error as _;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Any error of this crate. An error can be cloned, because the error of one event may be returned several times.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The plugin reported an error.
    #[error("{function}: {code}: {message}")]
    Pjrt {
        /// The C function that failed, or that started the work which failed.
        function: &'static str,
        /// The kind of error.
        code: Code,
        /// The message of the plugin.
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
    /// [`load_library`](crate::load_library) cannot load the library.
    #[error("{}: {}", path.display(), loader_words(path, source))]
    Library {
        /// The path or name of the library.
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
    /// The plugin lacks this function: its API is too old, or it leaves out the function or the function's extension.
    #[error("the plugin has no {function} (its PJRT API is {}.{})", version.0, version.1)]
    Missing {
        /// The C function that the plugin lacks.
        function: &'static str,
        /// The major and minor version of the plugin's API.
        version: (i32, i32),
    },
    /// The caller's values cannot be used. The plugin was not called with them.
    #[error("{0}; this is a defect of this server")]
    Arguments(String),
    /// The plugin returned the number of an element type that this crate does not support.
    #[error(
        "element type {0} of the PJRT header is not supported; the supported types are pred, s4, s8, s32, u8, u32, \
         f8e4m3fn, f16, bf16 and f32"
    )]
    ElementType(i32),
    /// The plugin returned a value that this crate cannot use.
    #[error("{function}: the plugin returned {what}")]
    Contract {
        /// The C function that returned it.
        function: &'static str,
        /// A description of the value, as a noun phrase.
        what: &'static str,
    },
}

impl Error {
    /// The code of the error, if the plugin reported the error.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Pjrt { code, .. } => Some(*code),
            Self::Open { .. }
            | Self::Library { .. }
            | Self::Table { .. }
            | Self::Missing { .. }
            | Self::Arguments(_)
            | Self::ElementType(_)
            | Self::Contract { .. } => None,
        }
    }

    /// True if the plugin does not support the operation: the C function is missing, or the plugin returned
    /// [`Code::Unimplemented`].
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Missing { .. }) || self.code() == Some(Code::Unimplemented)
    }
}

/// The kinds of errors that a plugin reports: absl's status codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The work was cancelled.
    Cancelled,
    /// An unknown error, or an error whose code the plugin does not return or the header does not list.
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
    /// A resource is used up, such as memory.
    ResourceExhausted,
    /// The call is not allowed in the current state of the plugin or the object.
    FailedPrecondition,
    /// The work was aborted.
    Aborted,
    /// A value is out of its range.
    OutOfRange,
    /// The plugin cannot do this.
    Unimplemented,
    /// An error inside the plugin or the compiler, such as a bug.
    Internal,
    /// A resource or service is unavailable, perhaps only for a while.
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
    /// Returns the code with this number in the header, or [`Code::Unknown`] if no code has this number.
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

/// Returns the loader's message without the path at its start, because the errors of this crate already name the path.
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
