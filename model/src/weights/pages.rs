//! Bytes of a checkpoint's files, and the memory that reading them takes.
//!
//! Entry points: [`FileBytes`], [`Pages`]. The pages of a range are returned to the system when its [`Pages`] is
//! dropped, and by some readers every few MiB, so that weights that were converted and packed are not in memory twice.

use std::ops::Range;

use super::mmap::MappedFile;

/// After [`Pages::pass`] has counted this many bytes, it returns their pages to the system.
const GIVE_BACK_BYTES: usize = 4 << 20;

/// The bytes of a file.
#[derive(Debug)]
pub(super) enum FileBytes {
    Embedded(&'static [u8]),
    Mapped(MappedFile),
    /// Values that a file's header contains.
    Owned(Vec<u8>),
}

/// A range of a file. If the file is mapped, dropping the range returns its pages to the system.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    pub(super) file: &'a FileBytes,
    pub(super) range: Range<usize>,
}

impl FileBytes {
    /// Returns the bytes of the whole file.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Embedded(bytes) => bytes,
            Self::Mapped(file) => file.bytes(),
            Self::Owned(bytes) => bytes,
        }
    }
}

impl<'a> Pages<'a> {
    /// Returns the bytes of the range.
    pub(super) fn bytes(&self) -> &'a [u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// Returns a range within this one; `range` counts from this one's start.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        Self { file: self.file, range: self.range.start + range.start..self.range.start + range.end }
    }

    /// True if this range ends where the byte `start` of `pages` begins.
    pub(super) fn ends_at(&self, pages: &Self, start: usize) -> bool {
        std::ptr::eq(self.file, pages.file) && self.range.end == pages.range.start + start
    }

    /// Extends the range by `num_bytes`. If the range is then at least [`GIVE_BACK_BYTES`] long, returns its pages to
    /// the system and makes it empty.
    pub(super) fn pass(&mut self, num_bytes: usize) {
        self.range.end += num_bytes;
        if self.range.len() >= GIVE_BACK_BYTES {
            self.give_back();
            self.range.start = self.range.end;
        }
    }

    fn give_back(&self) {
        match self.file {
            FileBytes::Embedded(_) | FileBytes::Owned(_) => {}
            FileBytes::Mapped(file) => file.give_back(self.range.clone()),
        }
    }
}

impl Drop for Pages<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}
