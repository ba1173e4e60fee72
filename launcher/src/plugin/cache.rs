//! The cache folder of one version of one plugin. It is locked while a plugin is written, and readers never see half a
//! file.
//!
//! The file `<file name>` is the plugin. The file `<file name>.sha256` names the wheel that contained the plugin. It is
//! written last, so the plugin is complete if both files exist and the hash in it is the pinned one. The next fetch
//! overwrites the files that a killed fetch left.

use std::fs::{File, Permissions, TryLockError};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use devices::plugins::Plugin;

use super::error::FetchError;
use super::notice::say;

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
    /// The wait ends when the other process ends, even if a signal ends it.
    ///
    /// # Errors
    /// [`FetchError::Cache`] when the folder cannot be created or locked.
    pub(crate) fn lock(cache: &Path, plugin: &'static Plugin) -> Result<Self, FetchError> {
        let path = cache.join(plugin.versioned_name());
        std::fs::create_dir_all(&path).map_err(failed("create", &path))?;
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
        self.path.join(self.plugin.file_name)
    }

    /// True if the folder contains the complete plugin of the pinned wheel.
    pub(crate) fn is_complete(&self) -> bool {
        let stamp = std::fs::read_to_string(self.stamp_path()).unwrap_or_default();
        stamp.split_whitespace().next() == Some(self.plugin.wheel.sha256) && self.plugin_path().is_file()
    }

    /// Creates an empty folder to download into, in the file system of the cache.
    ///
    /// # Errors
    /// [`FetchError::Cache`] when the folder cannot be created.
    pub(crate) fn download_folder(&self) -> Result<DownloadFolder, FetchError> {
        let path = self.path.join("download");
        if path.exists() {
            std::fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
        }
        std::fs::create_dir(&path).map_err(failed("create", &path))?;
        Ok(DownloadFolder { path })
    }

    /// Creates the file for the plugin, which the caller writes and then places.
    ///
    /// # Errors
    /// [`FetchError::Cache`] when the file cannot be created.
    pub(crate) fn new_plugin(&self) -> Result<NewFile, FetchError> {
        NewFile::create(self.plugin_path())
    }

    /// Records which wheel contained the plugin. From now on the plugin is complete.
    ///
    /// # Errors
    /// [`FetchError::Cache`] when writing fails.
    pub(crate) fn stamp(&self) -> Result<(), FetchError> {
        let mut stamp = NewFile::create(self.stamp_path())?;
        stamp.write_all(format!("{}  {}\n", self.plugin.wheel.sha256, self.plugin.wheel.file_name).as_bytes())?;
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
        std::fs::rename(&self.path, &self.destination).map_err(failed("move the plugin to", &self.destination))?;
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

fn failed(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> FetchError {
    let path = path.to_path_buf();
    move |source| FetchError::Cache { action, path, source }
}
