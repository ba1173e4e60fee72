//! A file mapped into memory, read-only. The only unsafe code of this crate.
//!
//! Door: [`MappedFile::open`]. Pages are read from disk when they are touched, and the system may drop them again.

#![expect(unsafe_code, reason = "the file may change behind a mapping; see the SAFETY comment")]

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

/// The bytes of a file.
#[derive(Debug)]
pub(super) struct MappedFile {
    mapping: Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    ///
    /// # Errors
    /// When it cannot be opened or mapped.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: nothing in this process writes to a checkpoint. Another process that rewrites one in place while it is
        // loaded can change the weights read, and one that truncates it ends this process with SIGBUS; tools that
        // download models write to another file and rename it, which leaves a mapping as it was.
        let mapping = unsafe { Mmap::map(&file) }?;
        Ok(Self { mapping })
    }

    /// The whole file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.mapping
    }
}
