//! The folder of one model in the cache that Python's tools also use: `blobs/<etag>` are the contents of files,
//! `snapshots/<commit>/<name>` are links to blobs, `refs/<revision>` contains the name of a commit, and
//! `../.locks/<model>/<etag>.lock` is held while a blob is written.
//!
//! Readers never see half a file: blobs and refs are renamed into place, and a link is made by one system call.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use hf_hub::{Cache, CacheRepo, Repo, RepoType};

use super::error::HubError;
use super::files;
use super::gguf;
use super::hub::is_commit;

/// A model's folder in the cache, for one revision.
#[derive(Debug)]
pub(crate) struct ModelCache {
    root: PathBuf,
    folder_name: String,
    revision: String,
    repo: CacheRepo,
}

/// The files of a model that the server reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The folder with the files, or the path of the first GGUF file.
    pub(crate) path: PathBuf,
    /// The commit of the files; `None` for a folder that the user named.
    pub(crate) commit: Option<String>,
}

/// A lock that is held while a blob is written. The system releases it when this process ends. It holds nothing on a
/// file system without locks.
#[derive(Debug)]
pub(crate) struct BlobLock {
    _file: Option<File>,
}

impl ModelCache {
    pub(crate) fn new(root: &Path, model: &str, revision: &str) -> Self {
        let repo = Repo::with_revision(model.to_owned(), RepoType::Model, revision.to_owned());
        let folder_name = repo.folder_name();
        let repo = Cache::new(root.to_path_buf()).repo(repo);
        Self { root: root.to_path_buf(), folder_name, revision: revision.to_owned(), repo }
    }

    /// The path of the blob with this ETag. The blob may not exist.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.repo.blob_path(etag)
    }

    /// The path of the blob with this ETag while it is downloaded.
    pub(crate) fn incomplete(&self, etag: &str) -> PathBuf {
        self.blob(&format!("{etag}.incomplete"))
    }

    /// Returns the folder of the blobs, and creates it if it is missing.
    ///
    /// # Errors
    /// [`HubError::Disk`] when the folder cannot be created.
    pub(crate) fn blobs(&self) -> Result<PathBuf, HubError> {
        let folder = self.root.join(&self.folder_name).join("blobs");
        std::fs::create_dir_all(&folder).map_err(failed("create", &folder))?;
        Ok(folder)
    }

    /// Returns the revision's snapshot if it is complete: the GGUF files of the quantization, if one is asked for, else
    /// safetensors or the only GGUF files.
    ///
    /// # Errors
    /// The names of the files that the snapshot lacks.
    pub(crate) fn snapshot(&self, quantization: Option<&str>) -> Result<Snapshot, Vec<String>> {
        let gguf = self.gguf(quantization);
        match (self.safetensors(), quantization) {
            (Err(missing), None) => gguf.map_err(|()| missing),
            (found, None) => found,
            (_, Some(quantization)) => gguf.map_err(|()| vec![format!("*{quantization}*.gguf")]),
        }
    }

    /// Returns the snapshot of the GGUF files of the quantization.
    fn gguf(&self, quantization: Option<&str>) -> Result<Snapshot, ()> {
        let commit = self.commit().ok_or(())?;
        let folder = self.repo.pointer_path(&commit);
        let files = gguf::choose(&names(&folder, ""), quantization).map_err(drop)?;
        let path = folder.join(files.first().ok_or(())?);
        Ok(Snapshot { path, commit: Some(commit) })
    }

    /// Returns the snapshot of a model in safetensors.
    fn safetensors(&self) -> Result<Snapshot, Vec<String>> {
        let commit = self.commit();
        let folder = commit.as_ref().map(|commit| self.repo.pointer_path(commit));
        let path = |name: &str| folder.as_ref().map(|folder| folder.join(name));
        let missing = files::missing(
            |name| path(name).and_then(|path| std::fs::read(path).ok()),
            |name| path(name).is_some_and(|path| path.is_file()),
        );
        match (folder, commit) {
            (Some(path), Some(commit)) if missing.is_empty() => Ok(Snapshot { path, commit: Some(commit) }),
            _ => Err(missing),
        }
    }

    /// The folder with the files of a commit.
    pub(crate) fn folder(&self, commit: &str) -> PathBuf {
        self.repo.pointer_path(commit)
    }

    /// Takes the lock of the blob `etag`, or another lock with this name, and waits while another process holds it.
    /// Processes on other hosts are excluded too if the file system supports locks. `on_wait` is called before a wait.
    ///
    /// # Errors
    /// [`HubError::Disk`] when the lock file cannot be opened or locked.
    pub(crate) fn lock(&self, etag: &str, on_wait: impl FnOnce()) -> Result<BlobLock, HubError> {
        let folder = self.root.join(".locks").join(&self.folder_name);
        std::fs::create_dir_all(&folder).map_err(failed("create", &folder))?;
        let path = folder.join(format!("{etag}.lock"));
        let file =
            File::options().create(true).write(true).truncate(false).open(&path).map_err(failed("open", &path))?;
        let outcome = match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => {
                on_wait();
                file.lock()
            }
            Err(TryLockError::Error(error)) => Err(error),
        };
        match outcome {
            Ok(()) => Ok(BlobLock { _file: Some(file) }),
            // Some network file systems have no locks. Two processes may then download the same file.
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(BlobLock { _file: None }),
            Err(source) => Err(failed("lock", &path)(source)),
        }
    }

    /// Makes the snapshot's file `name` a link to the blob.
    ///
    /// # Errors
    /// [`HubError::Disk`] when the link cannot be made.
    pub(crate) fn link(&self, commit: &str, name: &str, etag: &str) -> Result<(), HubError> {
        let path = self.folder(commit).join(name);
        let folder = path.parent().unwrap_or(&self.root);
        std::fs::create_dir_all(folder).map_err(failed("create", folder))?;
        // A name may contain folders of the repository, so the way back to the model's folder has a variable length.
        let to_root = "../".repeat(2 + name.matches('/').count());
        let target = Path::new(&to_root).join("blobs").join(etag);
        let link = || std::os::unix::fs::symlink(&target, &path);
        let outcome = match link() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match std::fs::read_link(&path) {
                Ok(found) if found == target => Ok(()),
                // The link points to another blob, or the file is no link, so it is replaced.
                _ => std::fs::remove_file(&path).and_then(|()| link()),
            },
            outcome => outcome,
        };
        outcome.map_err(failed("link", &path))
    }

    /// Records the commit to which the revision points.
    ///
    /// # Errors
    /// [`HubError::Disk`] when the ref cannot be written.
    pub(crate) fn set_commit(&self, commit: &str) -> Result<(), HubError> {
        if self.commit().as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.ref_path();
        let folder = path.parent().unwrap_or(&self.root);
        std::fs::create_dir_all(folder).map_err(failed("create", folder))?;
        let _lock = self.lock("refs", || {})?;
        // The new file is not written into the folder `refs`, where every file is a ref.
        let new = self.root.join(&self.folder_name).join("ref.new");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(commit.as_bytes())?;
            file.sync_all()
        };
        write().map_err(failed("write", &new))?;
        std::fs::rename(&new, &path).map_err(failed("move a file to", &path))
    }

    /// The commit of the revision: the revision itself if it is a commit, otherwise the one in the revision's ref,
    /// which the last download recorded.
    fn commit(&self) -> Option<String> {
        if is_commit(&self.revision) {
            return Some(self.revision.clone());
        }
        let commit = std::fs::read_to_string(self.ref_path()).ok()?.trim().to_owned();
        is_commit(&commit).then_some(commit)
    }

    fn ref_path(&self) -> PathBuf {
        self.root.join(&self.folder_name).join("refs").join(&self.revision)
    }
}

/// Returns the names of the files in a folder and in the folders of it, each with `prefix`. A file that cannot be
/// read is not among them.
fn names(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of_entry = |entry: std::fs::DirEntry| {
        let (path, name) = (entry.path(), format!("{prefix}{}", entry.file_name().to_string_lossy()));
        match path.is_dir() {
            true => names(&path, &format!("{name}/")),
            false if path.is_file() => vec![name],
            false => Vec::new(),
        }
    };
    entries.flat_map(of_entry).collect()
}

/// Writes a folder's list of names to the disk, so that a renamed file survives a power failure.
///
/// # Errors
/// [`HubError::Disk`] when the folder cannot be synchronised.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), HubError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("write", folder))
}

/// The free bytes of the file system that contains a folder.
///
/// # Errors
/// [`HubError::Disk`] when the system does not report the free bytes.
pub(crate) fn free_bytes(folder: &Path) -> Result<u64, HubError> {
    let status = rustix::fs::statvfs(folder).map_err(|error| failed("read the free space of", folder)(error.into()))?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HubError {
    let path = path.to_path_buf();
    move |source| HubError::Disk { action, path, source }
}

#[cfg(test)]
mod tests {
    use test_support::{join_scoped, receive};

    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn the_layout_is_that_of_pythons_tools() {
        let root = tempfile::tempdir().unwrap();
        let cache = ModelCache::new(root.path(), "org/tiny", "refs/pr/1");
        cache.blobs().unwrap();
        for (name, etag) in [("config.json", "e1"), ("tokenizer.json", "e2"), ("model.safetensors", "e3")] {
            assert!(cache.snapshot(None).unwrap_err().contains(&name.to_owned()));
            std::fs::write(cache.blob(etag), name).unwrap();
            cache.link(COMMIT, name, "gone").unwrap();
            cache.link(COMMIT, name, etag).unwrap();
            cache.link(COMMIT, name, etag).unwrap();
        }
        assert_eq!(cache.snapshot(None).unwrap_err().len(), 3, "no ref names the commit");
        cache.set_commit(COMMIT).unwrap();
        let snapshot = cache.snapshot(None).unwrap();
        let model = root.path().join("models--org--tiny");
        assert_eq!(snapshot, Snapshot { path: model.join("snapshots").join(COMMIT), commit: Some(COMMIT.into()) });
        assert_eq!(std::fs::read_to_string(model.join("refs/refs/pr/1")).unwrap(), COMMIT);
        let link = std::fs::read_link(snapshot.path.join("config.json")).unwrap();
        assert_eq!(link, Path::new("../../blobs/e1"));
        assert_eq!(std::fs::read_to_string(snapshot.path.join("config.json")).unwrap(), "config.json");
        cache.link(COMMIT, "a/b.jinja", "e1").unwrap();
        assert_eq!(std::fs::read_link(snapshot.path.join("a/b.jinja")).unwrap(), Path::new("../../../blobs/e1"));
        assert_eq!(std::fs::read_to_string(snapshot.path.join("a/b.jinja")).unwrap(), "config.json");
        assert_eq!(ModelCache::new(root.path(), "org/tiny", COMMIT).snapshot(None).unwrap(), snapshot);
        let other = COMMIT.replace('0', "f");
        cache.set_commit(&other).unwrap();
        assert_eq!(std::fs::read_to_string(model.join("refs/refs/pr/1")).unwrap(), other);
        drop(cache.lock("e1", || panic!("no other process holds the lock")).unwrap());
        assert!(root.path().join(".locks/models--org--tiny/e1.lock").exists());
    }

    #[test]
    fn a_second_writer_waits_for_the_first() {
        let root = tempfile::tempdir().unwrap();
        let cache = ModelCache::new(root.path(), "org/tiny", "main");
        let first = cache.lock("e", || {}).unwrap();
        let (waits_tx, waits) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| cache.lock("e", move || waits_tx.send(()).unwrap()).unwrap());
            receive(&waits, "the wait for the lock");
            drop(first);
            join_scoped(second, "the second writer");
        });
    }

    #[test]
    fn a_broken_ref_names_no_commit() {
        let root = tempfile::tempdir().unwrap();
        let cache = ModelCache::new(root.path(), "org/tiny", "main");
        cache.set_commit(COMMIT).unwrap();
        for text in ["", "0123", "../../.."] {
            std::fs::write(cache.ref_path(), text).unwrap();
            assert_eq!(cache.commit(), None, "{text:?}");
        }
    }
}
