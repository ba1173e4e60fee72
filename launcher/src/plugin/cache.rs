//! The folder of one version of one plugin, in the cache folder. It is locked while a plugin is written, and readers
//! never see half a file.
//!
//! A plugin without libraries is the file `<file name>`. A plugin with libraries keeps the relative path that it has in
//! its wheel, and so does each library. Libraries are placed before the plugin, because a reader that finds the
//! plugin's file expects its libraries.
//!
//! The file `<file name>.sha256` names the wheels that contained the files. It is written last, so everything is
//! complete if all files exist and the hashes in it are the pinned ones. The next fetch overwrites or removes the files
//! that a killed fetch left; a folder of downloads stays until a fetch uses pip again.

use std::fs::{File, Permissions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use devices::ownership::{Code, make_folder};
use devices::plugins::Plugin;

use super::error::FetchError;
use super::notice::say;

/// The name of the folder to download into.
const DOWNLOADS: &str = "download";

/// The folder of a plugin. This fetch holds its lock until the value is dropped.
#[derive(Debug)]
pub(crate) struct LockedFolder {
    path: PathBuf,
    plugin: &'static Plugin,
    /// The open lock file. The system releases the lock when the file is closed, also when this process is killed.
    _lock: File,
}

/// A file that is written next to its destination. Unless it is then moved there, it is removed when dropped.
#[derive(Debug)]
pub(crate) struct NewFile {
    file: File,
    path: PathBuf,
    destination: PathBuf,
    is_placed: bool,
}

impl LockedFolder {
    /// Creates the folder `<cache>/<package>-<version>` and locks it, after waiting while another fetch holds the lock.
    /// The wait ends at the latest when the other process ends, even if a signal ends it.
    ///
    /// # Errors
    /// [`FetchError::Cache`] when the folder cannot be created or locked, or another user can write it.
    pub(crate) fn lock(cache: &Path, plugin: &'static Plugin) -> Result<Self, FetchError> {
        let path = cache.join(plugin.versioned_name());
        make_folder(Code::Plugins, cache).map_err(failed("use", cache))?;
        make_folder(Code::Plugins, &path).map_err(failed("use", &path))?;
        let lock_path = path.join("lock");
        let options = File::options().create(true).write(true).truncate(false).open(&lock_path);
        let lock = options.map_err(failed("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                say(format_args!("waiting for another fetch of {}", plugin.name));
                lock.lock().map_err(failed("lock", &lock_path))?;
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock", &lock_path)(source)),
        }
        Ok(Self { path, plugin, _lock: lock })
    }

    /// The path of the plugin's file, which may not exist.
    pub(crate) fn plugin_path(&self) -> PathBuf {
        self.path.join(self.plugin.cached_path())
    }

    /// True if the folder contains the complete plugin and all libraries of the pinned wheels.
    pub(crate) fn is_complete(&self) -> bool {
        let stamp = std::fs::read_to_string(self.stamp_path()).unwrap_or_default();
        let hashes = stamp.lines().filter_map(|line| line.split_whitespace().next());
        let mut files = self.plugin.library_packages().iter().flat_map(|package| package.files);
        hashes.eq(self.plugin.wheels().map(|wheel| wheel.sha256))
            && self.plugin_path().is_file()
            && files.all(|file| self.path.join(file).is_file())
    }

    /// Removes what other versions of this program, or a killed fetch, left of a plugin with libraries. The plugin goes
    /// before its libraries, so that it is never seen without them. A folder of downloads stays, and so does a plugin
    /// without its folders until the new one is complete.
    ///
    /// # Errors
    /// [`FetchError::Cache`] when something cannot be removed.
    pub(crate) fn clear(&self) -> Result<(), FetchError> {
        if self.plugin.library_packages().is_empty() {
            return Ok(());
        }
        for path in [self.stamp_path(), self.plugin_path()] {
            remove_file(&path)?;
        }
        let kept = ["lock", DOWNLOADS, self.plugin.file_name];
        for entry in std::fs::read_dir(&self.path).map_err(failed("read", &self.path))? {
            let path = entry.map_err(failed("read", &self.path))?.path();
            if kept.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            let remove = if path.is_dir() { std::fs::remove_dir_all } else { std::fs::remove_file };
            remove(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }

    /// Creates an empty folder to download into, in the file system of the cache.
    ///
    /// # Errors
    /// [`FetchError::Cache`] when the folder cannot be created.
    pub(crate) fn download_folder(&self) -> Result<DownloadFolder, FetchError> {
        let path = self.path.join(DOWNLOADS);
        if path.exists() {
            std::fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
        }
        std::fs::create_dir(&path).map_err(failed("create", &path))?;
        Ok(DownloadFolder { path })
    }

    /// Creates a file of the plugin or of a library, which the caller writes and then places.
    ///
    /// # Errors
    /// [`FetchError::Cache`] when the file or its folder cannot be created.
    pub(crate) fn new_file(&self, file: &Path) -> Result<NewFile, FetchError> {
        let path = self.path.join(file);
        let folder = path.parent().unwrap_or(&self.path);
        make_folder(Code::Plugins, folder).map_err(failed("use", folder))?;
        NewFile::create(path)
    }

    /// Records which wheels contained the files. From now on the plugin is complete.
    ///
    /// # Errors
    /// [`FetchError::Cache`] when writing fails.
    pub(crate) fn stamp(&self) -> Result<(), FetchError> {
        let lines: Vec<String> =
            self.plugin.wheels().map(|wheel| format!("{}  {}\n", wheel.sha256, wheel.file_name)).collect();
        if self.plugin_path() != self.path.join(self.plugin.file_name) {
            // An older version of this program put the plugin here, where it finds only libraries of the system. The
            // stamp is written after the removal, because the next fetch does nothing if the stamp exists.
            remove_file(&self.path.join(self.plugin.file_name))?;
        }
        let mut stamp = NewFile::create(self.stamp_path())?;
        stamp.write_all(lines.concat().as_bytes())?;
        stamp.place()
    }

    fn stamp_path(&self) -> PathBuf {
        self.path.join(format!("{}.sha256", self.plugin.file_name))
    }
}

/// A folder that is removed, with its contents, when dropped.
#[derive(Debug)]
pub(crate) struct DownloadFolder {
    path: PathBuf,
}

impl DownloadFolder {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes a file of the folder, to make room for the next.
    pub(crate) fn remove(&self, path: &Path) {
        let _ = std::fs::remove_file(path);
    }
}

impl Drop for DownloadFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

impl NewFile {
    fn create(destination: PathBuf) -> Result<Self, FetchError> {
        let mut path = destination.clone().into_os_string();
        path.push(".partial");
        let path = PathBuf::from(path);
        let file = File::create(&path).map_err(failed("create", &path))?;
        Ok(Self { file, path, destination, is_placed: false })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`FetchError::Cache`] when writing fails.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<(), FetchError> {
        self.file.write_all(bytes).map_err(failed("write", &self.path))
    }

    /// Writes the file to the disk and renames it to its destination.
    ///
    /// # Errors
    /// [`FetchError::Cache`] when writing or moving fails.
    pub(crate) fn place(mut self) -> Result<(), FetchError> {
        self.file.set_permissions(Permissions::from_mode(0o644)).map_err(failed("set the mode of", &self.path))?;
        self.file.sync_all().map_err(failed("write", &self.path))?;
        std::fs::rename(&self.path, &self.destination).map_err(failed("move the new file to", &self.destination))?;
        self.is_placed = true;
        let folder = self.destination.parent().unwrap_or(Path::new("/"));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("write", folder))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn remove_file(path: &Path) -> Result<(), FetchError> {
    match std::fs::remove_file(path) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(failed("remove", path)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> FetchError {
    let path = path.to_path_buf();
    move |source| FetchError::Cache { action, path, source }
}
