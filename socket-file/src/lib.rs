//! Unix sockets that have a file: made where nobody listens, and removed at the end.
//!
//! Door: [`SocketFile::bind`]. A file left behind by a process that was killed is replaced; one that somebody listens on, or
//! that is no socket, is an error and stays. Shards listen for the router this way, and the router for clients.

#![forbid(unsafe_code)]

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use proto::MAX_SOCKET_PATH_BYTES;

/// Only the user who runs the process may connect.
const PRIVATE_MODE: u32 = 0o600;

/// Why the socket cannot be made.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant means")]
pub enum SocketError {
    #[error("socket path {path} has {len} bytes, a Unix socket allows {MAX_SOCKET_PATH_BYTES}; use a shorter one")]
    PathTooLong { path: PathBuf, len: usize },
    #[error("socket {path} is in use by another process")]
    InUse { path: PathBuf },
    #[error("{path} exists and is not a socket; remove it or use another path")]
    NotASocket { path: PathBuf },
    #[error("listen on {path}: {source}")]
    Listen { path: PathBuf, source: io::Error },
}

/// The file of a socket that this process listens on; removed when dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
}

impl SocketFile {
    /// Listens on `path`; who may connect says the umask of the process.
    ///
    /// # Errors
    /// When the path is too long, taken, or cannot be written.
    pub fn bind(path: &Path) -> Result<(Self, UnixListener), SocketError> {
        let len = path.as_os_str().len();
        if len > MAX_SOCKET_PATH_BYTES {
            return Err(SocketError::PathTooLong { path: path.into(), len });
        }
        let listen_error = |source| SocketError::Listen { path: path.into(), source };
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(SocketError::NotASocket { path: path.into() });
            }
            Ok(_) if UnixStream::connect(path).is_ok() => return Err(SocketError::InUse { path: path.into() }),
            Ok(_) => fs::remove_file(path).map_err(listen_error)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(listen_error(error)),
        }
        let listener = UnixListener::bind(path).map_err(listen_error)?;
        Ok((Self { path: path.into() }, listener))
    }

    /// Listens on `path`, for processes of the same user.
    ///
    /// # Errors
    /// As [`SocketFile::bind`].
    pub fn bind_private(path: &Path) -> Result<(Self, UnixListener), SocketError> {
        let (file, listener) = Self::bind(path)?;
        let listen_error = |source| SocketError::Listen { path: path.into(), source };
        fs::set_permissions(path, Permissions::from_mode(PRIVATE_MODE)).map_err(listen_error)?;
        Ok((file, listener))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "remove the socket file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_file_is_private_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (file, _listener) = SocketFile::bind_private(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, PRIVATE_MODE);
        assert!(matches!(SocketFile::bind(&path), Err(SocketError::InUse { .. })));
        assert!(path.exists());
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_left_behind_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        assert!(SocketFile::bind(&path).is_ok());
    }

    #[test]
    fn other_files_are_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(SocketFile::bind(&path), Err(SocketError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_path_too_long_is_named_with_its_length() {
        let path = PathBuf::from(format!("/{}", "x".repeat(MAX_SOCKET_PATH_BYTES)));
        let message = SocketFile::bind(&path).unwrap_err().to_string();
        assert!(message.contains("has 108 bytes, a Unix socket allows 107"), "{message}");
    }
}
