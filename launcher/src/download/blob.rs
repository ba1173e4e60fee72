//! A file during its download: `blobs/<etag>.incomplete`. A download that is killed leaves this file, and the next
//! download continues it if the file has a checksum.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::cache::{failed, sync_folder};
use super::checksum::Checksum;
use super::error::HubError;
use super::hub::RemoteFile;

/// The maximum number of bytes of one read and one write.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// A file that is being written. Its bytes are hashed as they arrive if the file has a checksum.
#[derive(Debug)]
pub(crate) struct Incomplete<'a> {
    remote: &'a RemoteFile,
    file: File,
    path: PathBuf,
    len_bytes: u64,
    checksum: Option<Checksum>,
    /// True if some of the file's bytes came from an earlier download.
    is_resumed: bool,
}

impl<'a> Incomplete<'a> {
    /// Opens the file. Bytes of an earlier download are kept if the file has a checksum and they do not exceed its
    /// size. Otherwise the file starts empty: without a checksum nothing would show that a power failure damaged the
    /// bytes.
    ///
    /// # Errors
    /// [`HubError::Disk`] when the file cannot be opened, read or truncated.
    pub(crate) fn open(path: PathBuf, remote: &'a RemoteFile) -> Result<Self, HubError> {
        let options = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = options.map_err(failed("open", &path))?;
        let len_bytes = file.metadata().map_err(failed("read the size of", &path))?.len();
        let checksum = Checksum::new(remote);
        let mut incomplete = Self { remote, file, path, len_bytes: 0, checksum, is_resumed: false };
        if incomplete.checksum.is_some() && len_bytes <= remote.size_bytes {
            incomplete.read_back(len_bytes)?;
        } else if len_bytes > 0 {
            incomplete.restart()?;
        }
        Ok(incomplete)
    }

    /// The number of bytes that the file has so far.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`HubError::Disk`] when writing fails.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.file.write_all(bytes).map_err(failed("write", &self.path))?;
        self.count(bytes);
        Ok(())
    }

    /// Discards all bytes, so that the download starts again.
    ///
    /// # Errors
    /// [`HubError::Disk`] when truncating fails.
    pub(crate) fn restart(&mut self) -> Result<(), HubError> {
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(failed("write", &self.path))?;
        self.checksum = Checksum::new(self.remote);
        (self.len_bytes, self.is_resumed) = (0, false);
        Ok(())
    }

    /// Returns true if the file has all its bytes and they match the checksum, if there is one. If they do not match
    /// and some came from an earlier download, this discards all bytes and returns false, so that the file is
    /// downloaded again.
    ///
    /// # Errors
    /// [`HubError::Checksum`] when the bytes do not match although this download received all of them; they are
    /// discarded. [`HubError::Disk`] when truncating fails.
    pub(crate) fn is_complete(&mut self) -> Result<bool, HubError> {
        if self.len_bytes < self.remote.size_bytes {
            return Ok(false);
        }
        let Some(found) = self.checksum.as_ref().and_then(|checksum| checksum.other_than(&self.remote.etag)) else {
            return Ok(true);
        };
        let was_resumed = self.is_resumed;
        self.restart()?;
        let (name, expected) = (self.remote.name.clone(), self.remote.etag.clone());
        if was_resumed { Ok(false) } else { Err(HubError::Checksum { name, found, expected }) }
    }

    /// Writes the file to the disk and renames it to `blob`.
    ///
    /// # Errors
    /// [`HubError::Disk`] when writing or moving fails.
    pub(crate) fn place(self, blob: &Path) -> Result<(), HubError> {
        self.file.sync_all().map_err(failed("write", &self.path))?;
        std::fs::rename(&self.path, blob).map_err(failed("move a file to", blob))?;
        sync_folder(blob.parent().unwrap_or(Path::new("/")))
    }

    /// Hashes the bytes of an earlier download, which stay in the file.
    fn read_back(&mut self, len_bytes: u64) -> Result<(), HubError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        while self.len_bytes < len_bytes {
            let wanted = usize::try_from(len_bytes - self.len_bytes).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            match self.file.read(&mut chunk[..wanted]) {
                Ok(0) => break,
                Ok(length) => {
                    self.count(&chunk[..length]);
                    self.is_resumed = true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("read", &self.path)(error)),
            }
        }
        Ok(())
    }

    fn count(&mut self, bytes: &[u8]) {
        self.len_bytes += bytes.len() as u64;
        if let Some(checksum) = &mut self.checksum {
            checksum.update(bytes);
        }
    }
}
