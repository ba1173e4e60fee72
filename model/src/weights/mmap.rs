//! A file mapped into memory, read-only. The only unsafe code of this crate.
//!
//! Doors: [`MappedFile::open`], [`MappedFile::give_back`]. Pages are read from disk when they are touched, and the system may
//! drop them again.

#![expect(unsafe_code, reason = "the file may change behind a mapping; see the SAFETY comments")]

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};

/// Linux maps so much around a page that is touched, if it is in its cache: pages that nobody asked for, or that were given back
/// a moment ago.
const FAULT_AROUND_BYTES: usize = 64 << 10;

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

    /// Takes the pages of these bytes, and of those around them, out of this process: they no longer count as its memory. Whoever
    /// reads them again gets them from the system's cache, or from disk.
    pub(super) fn give_back(&self, range: Range<usize>) {
        let start = range.start.saturating_sub(FAULT_AROUND_BYTES);
        let end = (range.end + FAULT_AROUND_BYTES).min(self.mapping.len());
        // SAFETY: the mapping is read-only and of a file, so a page that is dropped comes back with the bytes of the file,
        // which are those it had: `open` says who may change them. Borrowed bytes keep their address.
        let advised = unsafe { self.mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        if let Err(error) = advised {
            tracing::debug!(%error, "pages of the checkpoint stay in memory");
        }
    }
}
