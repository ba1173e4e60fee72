//! Checks a wheel and extracts files of it. Nothing is unpacked before the hash has been checked.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};

use devices::plugins::Wheel;
use sha2::{Digest, Sha256};
use zip::ZipArchive;
use zip::result::ZipError;

use super::cache::NewFile;
use super::error::FetchError;
use super::notice::say;

/// The maximum number of bytes of one read.
const CHUNK_BYTES: usize = 1 << 20;

/// An open wheel whose hash is a pinned one.
#[derive(Debug)]
pub(crate) struct CheckedWheel {
    file: File,
    path: PathBuf,
    pinned: &'static Wheel,
}

impl CheckedWheel {
    /// Opens the wheel and looks for its SHA-256 among the pinned ones. The file stays open, so no other file can take
    /// its place before it is unpacked.
    ///
    /// # Errors
    /// [`FetchError::Wheel`] when the file cannot be read. When no pinned wheel has the hash: [`FetchError::Sha256`] if
    /// only one wheel is pinned, or one has the name of the file; else [`FetchError::NotPinned`].
    pub(crate) fn open(path: &Path, pinned: &[&'static Wheel]) -> Result<Self, FetchError> {
        say(format_args!("checking the sha256 of {}", path.display()));
        let failed = |source| FetchError::Wheel { path: path.to_path_buf(), source };
        let mut file = File::open(path).map_err(failed)?;
        let found = sha256(&mut file).map_err(failed)?;
        file.rewind().map_err(failed)?;
        if let Some(pinned) = pinned.iter().copied().find(|wheel| wheel.sha256 == found) {
            return Ok(Self { file, path: path.to_path_buf(), pinned });
        }
        let path = path.to_path_buf();
        let same_name = pinned.iter().find(|wheel| path.ends_with(wheel.file_name));
        let meant = if let [only] = pinned { Some(only) } else { same_name };
        Err(match meant {
            Some(wheel) => FetchError::Sha256 { path, found, expected: wheel.sha256, wheel: wheel.file_name },
            None => FetchError::NotPinned { path, found, wheels: pinned.iter().map(|wheel| wheel.file_name).collect() },
        })
    }

    /// True if this is the pinned wheel.
    pub(crate) fn is(&self, pinned: &Wheel) -> bool {
        self.pinned == pinned
    }

    /// Writes a file of the wheel to `destination` and returns its size in bytes.
    ///
    /// # Errors
    /// [`FetchError::NoMember`] and [`FetchError::Zip`] for a bad wheel, [`FetchError::Cache`] when writing fails.
    pub(crate) fn unpack(&self, member: &'static str, destination: &mut NewFile) -> Result<u64, FetchError> {
        let failed = |source| match source {
            ZipError::FileNotFound => FetchError::NoMember { path: self.path.clone(), member },
            source => FetchError::Zip { path: self.path.clone(), source },
        };
        let mut archive = ZipArchive::new(&self.file).map_err(failed)?;
        let mut file = archive.by_name(member).map_err(failed)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut num_bytes = 0;
        loop {
            match file.read(&mut chunk) {
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
