//! Bytes of a checkpoint's files, and the memory that reading them takes.
//!
//! Doors: [`FileBytes`], [`Pages`]. Pages of a file that were read go back to the system when they are dropped, or on the way:
//! what was converted and packed is not kept twice.

use std::ops::Range;

use super::mmap::MappedFile;

/// Bytes that are passed before their pages go back.
const GIVE_BACK_BYTES: usize = 4 << 20;

/// Where the bytes of a file are.
#[derive(Debug)]
pub(super) enum FileBytes {
    Embedded(&'static [u8]),
    Mapped(MappedFile),
}

/// Bytes of a file whose pages go back in the end.
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
    /// All of them.
    pub(super) fn bytes(&self) -> &'a [u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// Some of them.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        Self { file: self.file, range: self.range.start + range.start..self.range.start + range.end }
    }

    /// Whether the byte `start` of `pages` is the next.
    pub(super) fn ends_at(&self, pages: &Self, start: usize) -> bool {
        std::ptr::eq(self.file, pages.file) && self.range.end == pages.range.start + start
    }

    /// Extends the range, and gives back what there is of it when that is much.
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
