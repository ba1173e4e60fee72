//! A rank's part of a tensor, read by rows: borrowed from the file where they lie there in one piece, else gathered.
//!
//! Doors: [`TensorPart::rows`], [`TensorPart::all`]. Only the part's own bytes are read. Pages of a file that were read go back to
//! the system when the rows are dropped, or on the way where they are gathered: what was converted and packed is not kept
//! twice.

use std::borrow::Cow;
use std::ops::Range;

use super::mmap::MappedFile;
use crate::graph::{DType, WeightPart, WeightSpec};

/// Bytes of the file that are passed before their pages go back.
const GIVE_BACK_BYTES: usize = 4 << 20;

/// Where the bytes of a file are.
#[derive(Debug)]
pub(super) enum FileBytes {
    Embedded(&'static [u8]),
    Mapped(MappedFile),
}

/// What a rank has of a tensor of the checkpoint. Nothing of it is read yet.
#[derive(Debug)]
pub(crate) struct TensorPart<'a> {
    /// Type of the elements.
    pub(crate) dtype: DType,
    /// The whole tensor in the file: what was mapped around the pieces that were read goes back with it.
    tensor: Pages<'a>,
    part: WeightPart,
    /// Size of the part's first dimension.
    num_rows: usize,
    /// Bytes of a stored row.
    row_bytes: usize,
    /// Bytes of an index of the dimension that is cut.
    index_bytes: usize,
}

/// Some rows of a part: indices of its first dimension.
#[derive(Debug)]
pub(crate) struct TensorRows<'a> {
    /// Little-endian elements, the last dimension fastest; not aligned.
    pub(crate) bytes: Cow<'a, [u8]>,
    _pages: Pages<'a>,
}

/// Bytes of a file whose pages go back in the end.
#[derive(Debug)]
struct Pages<'a> {
    file: &'a FileBytes,
    range: Range<usize>,
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

impl<'a> TensorPart<'a> {
    /// What `rank` has of the tensor that `spec` describes, which is of type `dtype` at `range` of `file`.
    pub(super) fn new(file: &'a FileBytes, range: Range<usize>, dtype: DType, spec: &WeightSpec, rank: usize) -> Self {
        let part = spec.part(rank);
        let bytes_below = |dim: usize| spec.shape.iter().skip(dim + 1).product::<usize>() * dtype.size_bytes() as usize;
        let num_rows = spec.local_shape().first().copied().unwrap_or(1);
        let tensor = Pages { file, range };
        Self { dtype, tensor, part, num_rows, row_bytes: bytes_below(0), index_bytes: bytes_below(part.dim) }
    }

    /// All rows.
    pub(crate) fn all(&self) -> TensorRows<'a> {
        self.rows(0..self.num_rows)
    }

    /// Reads the rows with these indices.
    pub(crate) fn rows(&self, rows: Range<usize>) -> TensorRows<'a> {
        let WeightPart { dim, start, len, padding } = self.part;
        if dim > 0 {
            return self.gather(rows);
        }
        let at = |row: usize| self.tensor.range.start + (start + row.min(len)) * self.row_bytes;
        let range = at(rows.start)..at(rows.end);
        let stored = &self.tensor.file.bytes()[range.clone()];
        let is_whole = padding == 0 || rows.end <= len;
        let padded = || [stored, &vec![0; rows.len() * self.row_bytes - stored.len()]].concat();
        let bytes = if is_whole { Cow::Borrowed(stored) } else { Cow::Owned(padded()) };
        TensorRows { bytes, _pages: Pages { file: self.tensor.file, range } }
    }

    /// Rows of which each has a piece.
    fn gather(&self, rows: Range<usize>) -> TensorRows<'a> {
        let WeightPart { dim: _, start, len, padding } = self.part;
        let own = start * self.index_bytes..(start + len) * self.index_bytes;
        let mut gathered = Vec::with_capacity(rows.len() * (len + padding) * self.index_bytes);
        let first = self.tensor.range.start + rows.start * self.row_bytes;
        let mut pages = Pages { file: self.tensor.file, range: first..first };
        for row in rows {
            let stored = &self.tensor.file.bytes()[self.tensor.range.start + row * self.row_bytes..][..self.row_bytes];
            gathered.extend_from_slice(&stored[own.clone()]);
            gathered.resize(gathered.len() + padding * self.index_bytes, 0);
            pages.pass(self.row_bytes);
        }
        TensorRows { bytes: Cow::Owned(gathered), _pages: pages }
    }
}

impl Pages<'_> {
    /// Extends the range, and gives back what there is of it when that is much.
    fn pass(&mut self, num_bytes: usize) {
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
