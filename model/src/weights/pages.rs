//! Bytes of a checkpoint's files, and the memory that reading them takes.
//!
//! Doors: [`FileBytes`], [`Pages`]. Pages that were read go back to the system when a [`Pages`] is dropped, or every
//! few MiB while it is read: weights that were converted and packed are not kept twice.

use std::ops::Range;

use super::mmap::MappedFile;

/// Number of bytes read before their pages are given back.
const GIVE_BACK_BYTES: usize = 4 << 20;

/// The bytes of a file.
#[derive(Debug)]
pub(super) enum FileBytes {
    Embedded(&'static [u8]),
    Mapped(MappedFile),
}

/// A range of a file whose pages are given back on drop.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    pub(super) file: &'a FileBytes,
    pub(super) range: Range<usize>,
}

impl FileBytes {
    /// The whole file.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Embedded(bytes) => bytes,
            Self::Mapped(file) => file.bytes(),
        }
    }
}

impl<'a> Pages<'a> {
    /// The bytes of the range.
    pub(super) fn bytes(&self) -> &'a [u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// A range within this one.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        Self { file: self.file, range: self.range.start + range.start..self.range.start + range.end }
    }

    /// True if this range ends at the byte `start` of `pages`.
    pub(super) fn ends_at(&self, pages: &Self, start: usize) -> bool {
        std::ptr::eq(self.file, pages.file) && self.range.end == pages.range.start + start
    }

    /// Extends the range. When it is at least [`GIVE_BACK_BYTES`] long, gives its pages back and empties it.
    pub(super) fn pass(&mut self, num_bytes: usize) {
        self.range.end += num_bytes;
        if self.range.len() >= GIVE_BACK_BYTES {
            self.give_back();
            self.range.start = self.range.end;
        }
    }

    fn give_back(&self) {
        match self.file {
            FileBytes::Embedded(_) => {}
            FileBytes::Mapped(file) => file.give_back(self.range.clone()),
        }
    }
}

impl Drop for Pages<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}
