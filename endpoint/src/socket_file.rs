//! Unix sockets and their files.
//!
//! A new socket replaces a file that refuses connections, such as the file of a killed process. Another file stays, and
//! the call fails: a socket that accepts connections or gives another error, or a file that is not a socket.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use proto::MAX_SOCKET_PATH_BYTES;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use crate::ListenError;

/// The mode of a private socket file: only root and the user who runs the process may connect.
const PRIVATE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// The maximum number of connections that wait to be accepted. The system reduces this number to its own limit.
const MAX_BACKLOG: i32 = i32::MAX;

/// The file of a socket on which this process listens. The file is removed when this value is dropped, unless another
/// file has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// The device and the inode of the file.
    identity: (u64, u64),
}

impl SocketFile {
    /// Listens on `path`. The process's umask decides who may connect.
    ///
    /// # Errors
    /// When the path is too long, is taken, or cannot be written.
    pub(crate) fn bind(path: &Path) -> Result<(Self, UnixListener), ListenError> {
        Self::bind_with(path, None)
    }

    /// Listens on `path` for processes of the same user and of root.
    ///
    /// # Errors
    /// As for [`SocketFile::bind`].
    pub(crate) fn bind_private(path: &Path) -> Result<(Self, UnixListener), ListenError> {
        Self::bind_with(path, Some(PRIVATE_MODE))
    }

    fn bind_with(path: &Path, mode: Option<Mode>) -> Result<(Self, UnixListener), ListenError> {
        let len = path.as_os_str().len();
        if len > MAX_SOCKET_PATH_BYTES {
            return Err(ListenError::PathTooLong { path: path.into(), len });
        }
        let listen_error = |source| ListenError::Path { path: path.into(), source };
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(ListenError::NotASocket { path: path.into() });
            }
            Ok(_) => match UnixStream::connect(path) {
                Ok(_) => return Err(ListenError::InUse { path: path.into() }),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(listen_error)?;
                }
                // The file has been removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(listen_error(error)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(listen_error(error)),
        }
        let listener = new_listener(path, mode).map_err(listen_error)?;
        let identity = identity(path).map_err(listen_error)?;
        Ok((Self { path: path.into(), identity }, listener))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = identity(&self.path).is_ok_and(|identity| identity == self.identity);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "the socket file cannot be removed");
        }
    }
}

/// Creates a socket that listens on `path`. If `mode` is given, it is set on the socket before the file exists: Linux
/// creates the file with the socket's mode minus the umask, so a private file is private from the start. The umask
/// itself is not changed, because all threads share it.
fn new_listener(path: &Path, mode: Option<Mode>) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Some(mode) = mode {
        rustix::fs::fchmod(&socket, mode)?;
    }
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, MAX_BACKLOG)?;
    Ok(socket.into())
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_private_file_is_private_before_anybody_can_connect() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _listener = new_listener(&path, Some(PRIVATE_MODE)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_socket_of_somebody_else_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (ours, _listener) = SocketFile::bind(&path).unwrap();
        // `other` is created before the first file is removed, so the two files have different inodes.
        let other = UnixListener::bind(directory.path().join("other")).unwrap();
        fs::rename(directory.path().join("other"), &path).unwrap();
        drop(ours);
        assert!(path.exists(), "{other:?} has lost its file");
    }

    #[test]
    fn a_private_file_is_private_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let (file, _listener) = SocketFile::bind_private(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(SocketFile::bind(&path), Err(ListenError::InUse { .. })));
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
    fn a_socket_to_which_connecting_fails_otherwise_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _datagrams = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let error = SocketFile::bind(&path).unwrap_err();
        assert!(matches!(error, ListenError::Path { .. }), "{error}");
        assert!(error.to_string().contains(&path.display().to_string()) && path.exists(), "{error}");
    }

    #[test]
    fn other_files_are_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(SocketFile::bind(&path), Err(ListenError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_path_too_long_is_named_with_its_length() {
        let path = PathBuf::from(format!("/{}", "x".repeat(MAX_SOCKET_PATH_BYTES)));
        let message = SocketFile::bind(&path).unwrap_err().to_string();
        assert!(message.contains("has 108 bytes, but a Unix socket allows 107"), "{message}");
    }
}
