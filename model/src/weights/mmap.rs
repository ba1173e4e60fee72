//! A file mapped into memory, read-only. The only unsafe code of this crate.
//!
//! Doors: [`MappedFile::open`], [`MappedFile::give_back`]. Pages are read from disk when they are touched, and the
//! system may drop them again.

#![expect(unsafe_code, reason = "the file may change behind a mapping; see the SAFETY comments")]

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};

/// The bytes around a touched page that Linux also maps if they are in the page cache. These may be pages that were
/// never read, or that were just given back.
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
    /// When the file cannot be opened or mapped.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: nothing in this process writes to a checkpoint. Another process that rewrites one in place while it
        // is loaded can change the weights read, and one that truncates it ends this process with SIGBUS. Tools that
        // download models write to another file and rename it, which does not change a mapping.
        let mapping = unsafe { Mmap::map(&file) }?;
        Ok(Self { mapping })
    }

    /// The whole file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.mapping
    }

    /// Removes the pages of these bytes, and of those around them, from this process: they no longer count as its
    /// memory. A later read gets them from the page cache, or from disk.
    pub(super) fn give_back(&self, range: Range<usize>) {
        let start = range.start.saturating_sub(FAULT_AROUND_BYTES);
        let end = (range.end + FAULT_AROUND_BYTES).min(self.mapping.len());
        // SAFETY: the mapping is read-only and of a file, so a dropped page comes back with the bytes of the file,
        // which are the same as before: the comment in `open` says who could change them. Borrowed bytes keep their
        // address.
        let advised = unsafe { self.mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        if let Err(error) = advised {
            tracing::debug!(%error, "pages of the checkpoint stay in memory");
        }
    }
}
