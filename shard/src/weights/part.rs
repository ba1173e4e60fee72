//! A rank's part of a tensor as one array: borrowed from the file where it lies there in one piece, else gathered row by row.
//!
//! Door: [`TensorPart::read`]. Only the part's own bytes are read. Pages of a file that were read go back to the system when the
//! part is dropped, or on the way where it is gathered: what was converted and copied is not kept twice.

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

/// What a rank has of a tensor of the checkpoint.
#[derive(Debug)]
pub(crate) struct TensorPart<'a> {
    /// Type of the elements.
    pub(crate) dtype: DType,
    /// Little-endian elements of [`WeightSpec::local_shape`], the last dimension fastest; not aligned.
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
    /// The part of `rank` of the tensor of type `dtype` that `spec` names, which lies at `range` of `file` and has the shape
    /// of `spec`.
    pub(super) fn read(file: &'a FileBytes, range: Range<usize>, dtype: DType, spec: &WeightSpec, rank: usize) -> Self {
        let WeightPart { dim, start, len, padding } = spec.part(rank);
        let num_blocks: usize = spec.shape.iter().take(dim).product();
        let index_bytes = spec.shape.iter().skip(dim + 1).product::<usize>() * dtype.size_bytes() as usize;
        let own = start * index_bytes..(start + len) * index_bytes;
        if num_blocks == 1 && padding == 0 {
            let range = range.start + own.start..range.start + own.end;
            let bytes = Cow::Borrowed(&file.bytes()[range.clone()]);
            return Self { dtype, bytes, _pages: Pages { file, range } };
        }
        let mut gathered = Vec::with_capacity(num_blocks * (len + padding) * index_bytes);
        let block_bytes = range.len() / num_blocks.max(1);
        let mut pages = Pages { file, range: range.start..range.start };
        for block in file.bytes()[range].chunks_exact(block_bytes.max(1)) {
            gathered.extend_from_slice(&block[own.clone()]);
            gathered.resize(gathered.len() + padding * index_bytes, 0);
            pages.pass(block_bytes);
        }
        Self { dtype, bytes: Cow::Owned(gathered), _pages: pages }
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
