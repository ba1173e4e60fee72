//! A file mapped into memory, read-only. The only unsafe code of this crate.
//!
//! Entry points: [`MappedFile::open`], [`MappedFile::give_back`]. Pages are read from disk when they are touched, and
//! the system may drop them again.

#![expect(unsafe_code, reason = "the file may change behind a mapping; see the SAFETY comments")]

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};

/// The bytes around a touched page that Linux by default also maps if they are in the page cache. These may be pages
/// that this process has never read, or has just returned to the system.
const FAULT_AROUND_BYTES: usize = 64 << 10;

/// A file that is mapped into memory as a whole.
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
        // SAFETY: nothing in this process writes to a checkpoint. Another process that rewrites the file in place while
        // it is loaded can change the weights that are read; if it truncates the file, this process ends with SIGBUS.
        // Tools that download models usually write to another file and rename it, which does not change a mapping.
        let mapping = unsafe { Mmap::map(&file) }?;
        Ok(Self { mapping })
    }

    /// Returns the bytes of the whole file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.mapping
    }

    /// Returns the pages of `range`, and of the bytes around it, to the system, so that they no longer count as memory
    /// of this process. A later read gets the pages from the page cache, or from disk.
    pub(super) fn give_back(&self, range: Range<usize>) {
        let start = range.start.saturating_sub(FAULT_AROUND_BYTES);
        let end = (range.end + FAULT_AROUND_BYTES).min(self.mapping.len());
        // SAFETY: the mapping is a read-only mapping of a file, so a dropped page is read again from the file when it
        // is touched, with the same bytes as before; the comment in `open` says who could change them. Borrowed bytes
        // keep their address.
        let advised = unsafe { self.mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        if let Err(error) = advised {
            tracing::debug!(%error, "pages of the checkpoint stay in memory");
        }
    }
}
