//! Checks a wheel and extracts its shared library. Nothing is unpacked before the hash has been checked.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};

use devices::plugins::Plugin;
use sha2::{Digest, Sha256};
use zip::ZipArchive;
use zip::result::ZipError;

use super::cache::NewFile;
use super::error::FetchError;

/// The maximum number of bytes of one read.
const CHUNK_BYTES: usize = 1 << 20;

/// An open wheel whose hash is the pinned one.
#[derive(Debug)]
pub(crate) struct CheckedWheel {
    file: File,
    path: PathBuf,
    member: &'static str,
}

impl CheckedWheel {
    /// Opens the wheel and compares its SHA-256 with the pinned one. The file stays open, so the bytes that were
    /// checked are the bytes that are unpacked.
    ///
    /// # Errors
    /// [`FetchError::Wheel`] when the file cannot be read, [`FetchError::Sha256`] when the hash differs.
    pub(crate) fn open(path: &Path, plugin: &'static Plugin) -> Result<Self, FetchError> {
        let failed = |source| FetchError::Wheel { path: path.to_path_buf(), source };
        let mut file = File::open(path).map_err(failed)?;
        let found = sha256(&mut file).map_err(failed)?;
        file.rewind().map_err(failed)?;
        if found != plugin.wheel.sha256 {
            return Err(FetchError::Sha256 {
                path: path.to_path_buf(),
                found,
                expected: plugin.wheel.sha256,
                wheel: plugin.wheel.file_name,
            });
        }
        Ok(Self { file, path: path.to_path_buf(), member: plugin.path_in_wheel })
    }

    /// Writes the shared library to `destination` and returns its size in bytes.
    ///
    /// # Errors
    /// [`FetchError::NoMember`] and [`FetchError::Zip`] for a bad wheel, [`FetchError::Cache`] when writing fails.
    pub(crate) fn unpack(&self, destination: &mut NewFile) -> Result<u64, FetchError> {
        let failed = |source| match source {
            ZipError::FileNotFound => FetchError::NoMember { path: self.path.clone(), member: self.member },
            source => FetchError::Zip { path: self.path.clone(), source },
        };
        let mut archive = ZipArchive::new(&self.file).map_err(failed)?;
        let mut member = archive.by_name(self.member).map_err(failed)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut num_bytes = 0;
        loop {
            match member.read(&mut chunk) {
                Ok(0) => return Ok(num_bytes),
                Ok(length) => {
                    destination.write_all(&chunk[..length])?;
                    num_bytes += length as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(ZipError::Io(error))),
            }
        }
    }
}

/// The SHA-256 of the file from its current offset, in lowercase hexadecimal digits.
fn sha256(file: &mut impl Read) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            Ok(length) => hash.update(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
