//! The path of the shards' sockets: the one that the user named, or one in a directory that belongs to this launch
//! only.
//!
//! A launcher that is killed cannot remove its directory, so a later launcher removes it. A lock on the directory shows
//! that its launcher still runs; the system releases the lock when the process ends. Process ids would not work,
//! because containers may share directories but not process ids.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::error::LauncherError;

/// The start of a private directory's name.
const PREFIX: &str = "text-generation-";
/// The number of random characters after the prefix. A directory whose name has another length is never removed.
const NUM_RANDOM: usize = 12;
/// The mode of a private directory: only this user may enter it.
const MODE: u32 = 0o700;
/// The maximum number of directories to try. Another launcher may remove a new directory as abandoned before it is
/// locked.
const MAX_ATTEMPTS: usize = 16;

/// The path of the sockets, and the private directory if one was made.
#[derive(Debug)]
pub(crate) struct SocketPlace {
    shard_uds_path: String,
    _directory: Option<PrivateDirectory>,
}

/// The lock of a path that the user named for the sockets, so that no launch replaces the sockets of another. Its file
/// lies beside the sockets and is removed at the end. The system also releases the lock when the process is killed.
#[derive(Debug)]
pub(crate) struct SocketLock {
    path: PathBuf,
    _file: File,
}

/// A directory of this launch. It is removed before its lock is released.
#[derive(Debug)]
struct PrivateDirectory {
    directory: TempDir,
    _lock: File,
}

impl SocketPlace {
    /// Uses the path that the user named, or makes a private directory.
    ///
    /// # Errors
    /// [`LauncherError::NoRuntimeDirectory`] when no directory can be made.
    pub(crate) fn new(shard_uds_path: Option<&str>) -> Result<Self, LauncherError> {
        match shard_uds_path {
            Some(path) => Ok(Self { shard_uds_path: path.to_owned(), _directory: None }),
            None => Self::private(&candidates()),
        }
    }

    /// Makes a directory that only this user may enter, in the first candidate that allows it. The directory's name is
    /// random, because launchers in containers have the same process id and may share the parent directory.
    fn private(candidates: &[PathBuf]) -> Result<Self, LauncherError> {
        candidates.iter().for_each(|candidate| remove_abandoned(candidate));
        if let Some(directory) = candidates.iter().find_map(|candidate| PrivateDirectory::make(candidate).ok()) {
            let shard_uds_path = directory.directory.path().join("shard").display().to_string();
            return Ok(Self { shard_uds_path, _directory: Some(directory) });
        }
        let tried = candidates.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        Err(LauncherError::NoRuntimeDirectory { tried })
    }

    /// The path of the sockets without `-<shard>`.
    pub(crate) fn shard_uds_path(&self) -> &str {
        &self.shard_uds_path
    }
}

impl SocketLock {
    /// Locks the path for the host with this index of a slice. Hosts on one machine may share a path, because each
    /// shard of the slice has its own socket. Returns `None` if there is nothing to lock: without a path, with a TCP
    /// address, or where no file can be locked. The shards then say what is wrong with the path, if anything is.
    ///
    /// # Errors
    /// When another launch holds the lock.
    pub(crate) fn take(shard_uds_path: Option<&str>, host: usize) -> Result<Option<Self>, LauncherError> {
        let Some(prefix) = shard_uds_path.filter(|path| !path.starts_with("tcp://")) else { return Ok(None) };
        let path = PathBuf::from(format!("{prefix}-host-{host}.lock"));
        match Self::lock(&path) {
            Ok(lock) => Ok(Some(lock)),
            Err(Errno::WOULDBLOCK) => Err(LauncherError::Arguments(vec![format!(
                "`shard_uds_path` {prefix} is in use by another launch, which holds {}; pass another path with \
                 --shard-uds-path, or none for a private directory",
                path.display()
            )])),
            Err(error) => {
                tracing::debug!("{} is not locked: {error}", path.display());
                Ok(None)
            }
        }
    }

    fn lock(path: &Path) -> Result<Self, Errno> {
        for _ in 0..MAX_ATTEMPTS {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            // A launch that ends removes its file, perhaps between the two calls above.
            let (locked, named) = (rustix::fs::fstat(&file)?, rustix::fs::lstat(path));
            if named.is_ok_and(|named| (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino)) {
                return Ok(Self { path: path.to_path_buf(), _file: file });
            }
        }
        Err(Errno::WOULDBLOCK)
    }
}

impl Drop for SocketLock {
    /// Removes the file before the lock is released.
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!("{} cannot be removed: {error}", self.path.display());
        }
    }
}

impl PrivateDirectory {
    fn make(parent: &Path) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX).rand_bytes(NUM_RANDOM).permissions(Permissions::from_mode(MODE));
        for _ in 0..MAX_ATTEMPTS {
            let directory = builder.tempdir_in(parent)?;
            let Ok(lock) = open_directory(directory.path()) else { continue };
            let is_taken = flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
            // On a file system without locks the directory is used without one: abandoned directories are not removed
            // there.
            if !is_taken && directory.path().exists() {
                return Ok(Self { directory, _lock: lock });
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

/// The directories in which a private directory may be made. A container's root may be read-only, but `/dev/shm` seldom
/// is.
fn candidates() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    runtime.into_iter().chain([std::env::temp_dir(), PathBuf::from("/dev/shm")]).collect()
}

/// Removes the directories in `parent` that killed launchers of this user left behind.
fn remove_abandoned(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let names = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_name));
    for path in names.map(|entry| entry.path()) {
        match remove_if_abandoned(&path) {
            Ok(true) => tracing::info!("removed {}, which a killed launcher left behind", path.display()),
            Ok(false) => {}
            Err(error) => tracing::debug!("{} cannot be removed: {error}", path.display()),
        }
    }
}

fn is_name(name: &str) -> bool {
    let drawn = name.strip_prefix(PREFIX);
    drawn.is_some_and(|drawn| drawn.len() == NUM_RANDOM && drawn.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

fn remove_if_abandoned(path: &Path) -> io::Result<bool> {
    let lock = open_directory(path)?;
    let metadata = lock.metadata()?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o777 == MODE;
    if !is_ours || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(false);
    }
    fs::remove_dir_all(path)?;
    Ok(true)
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_first_writable_candidate_is_taken_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let candidates = [root.path().join("missing"), root.path().to_path_buf()];
        let place = SocketPlace::private(&candidates).unwrap();
        let other = SocketPlace::private(&candidates).unwrap();
        assert_ne!(place.shard_uds_path(), other.shard_uds_path());
        let directory = Path::new(place.shard_uds_path()).parent().unwrap().to_path_buf();
        assert_eq!(directory.parent(), Some(root.path()));
        assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(place);
        assert!(!directory.exists());
    }

    #[test]
    fn a_path_belongs_to_one_launch_until_its_end() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("s").display().to_string();
        let lock = SocketLock::take(Some(&path), 0).unwrap().unwrap();
        let error = SocketLock::take(Some(&path), 0).unwrap_err();
        assert_eq!(error.exit_status(), proto::exit_status::CONFIGURATION);
        insta::assert_snapshot!(
            error.to_string().replace(&path, "PATH"),
            @"invalid arguments: `shard_uds_path` PATH is in use by another launch, which holds PATH-host-0.lock; pass another path with --shard-uds-path, or none for a private directory"
        );
        assert!(SocketLock::take(Some(&path), 1).unwrap().is_some(), "another host of the slice");
        drop(lock);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        assert!(SocketLock::take(Some(&path), 0).unwrap().is_some());
        for nothing in [None, Some("tcp://127.0.0.1:9000"), Some("/no/such/directory/s")] {
            assert!(SocketLock::take(nothing, 0).unwrap().is_none(), "{nothing:?}");
        }
    }

    #[test]
    fn one_of_many_launches_at_once_gets_the_path() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("s").display().to_string();
        let locks: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| SocketLock::take(Some(&path), 0))).collect();
            starts.into_iter().map(|start| test_support::join_scoped(start, "a start")).collect()
        });
        assert_eq!(locks.iter().filter(|lock| lock.is_ok()).count(), 1, "{locks:?}");
    }

    #[test]
    fn no_candidate_is_an_error_that_names_them() {
        let error = SocketPlace::private(&[PathBuf::from("/no/such/place")]).unwrap_err().to_string();
        assert!(error.contains("/no/such/place") && error.contains("--shard-uds-path"), "{error}");
    }

    #[test]
    fn only_what_nobody_holds_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let living = PrivateDirectory::make(root.path()).unwrap();
        let PrivateDirectory { directory, _lock: lock } = PrivateDirectory::make(root.path()).unwrap();
        // The system also releases the lock when a process is killed.
        drop(lock);
        let abandoned = directory.keep();
        drop(UnixListener::bind(abandoned.join("shard-0")).unwrap());
        let others = ["text-generation-models", "text-generation-abcdefghijkl", "other"];
        for name in others {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::set_permissions(root.path().join(name), Permissions::from_mode(0o755)).unwrap();
        }
        symlink(root.path().join("other"), root.path().join("text-generation-symlink00000")).unwrap();
        remove_abandoned(root.path());
        assert!(!abandoned.exists());
        assert!(living.directory.path().exists());
        assert!(others.iter().all(|name| root.path().join(name).exists()));
    }

    #[test]
    fn launches_that_start_together_leave_each_other_alone() {
        let root = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let starts: Vec<_> =
                (0..4).map(|_| scope.spawn(|| SocketPlace::private(&[root.path().to_path_buf()]).unwrap())).collect();
            let places: Vec<_> = starts.into_iter().map(|start| test_support::join_scoped(start, "a start")).collect();
            assert!(places.iter().all(|place| Path::new(place.shard_uds_path()).parent().unwrap().exists()));
        });
    }
}
