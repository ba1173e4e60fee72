//! A rank's part of a weight, read by rows: borrowed from the file where they lie there in one piece, else gathered.
//!
//! Doors: [`TensorPart::rows`], [`TensorPart::all`]. Only the part's own bytes are read. Pages of a file that were read go back to
//! the system when the rows are dropped, or on the way where they are gathered: what was converted and packed is not kept
//! twice.

use std::borrow::Cow;
use std::ops::Range;

use super::mmap::MappedFile;
use crate::graph::{DType, Section, Source, WeightPart, WeightSpec};

/// Bytes of the file that are passed before their pages go back.
const GIVE_BACK_BYTES: usize = 4 << 20;

/// Where the bytes of a file are.
#[derive(Debug)]
pub(super) enum FileBytes {
    Embedded(&'static [u8]),
    Mapped(MappedFile),
}

/// What a rank has of a weight. Nothing of it is read yet.
#[derive(Debug)]
pub(crate) struct TensorPart<'a> {
    /// Type of the elements.
    pub(crate) dtype: DType,
    /// The whole tensors in their files: what was mapped around the pieces that were read goes back with them.
    tensors: Vec<Pages<'a>>,
    layout: Layout,
    part: WeightPart,
    /// Size of the part's first dimension.
    num_rows: usize,
    /// Bytes of a row of the weight.
    row_bytes: usize,
    /// Bytes of an index of the dimension that is cut.
    index_bytes: usize,
}

/// Where the rows of a weight are.
#[derive(Debug, Clone, Copy)]
enum Layout {
    /// One after the other.
    Rows,
    /// Among those of a tensor: so many in each group.
    Section { section: Section, len: usize },
    /// The columns of a tensor with so many.
    Columns { section: Section, len: usize },
    /// A tensor each.
    Stack,
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
    /// What `rank` has of the weight that `spec` describes, whose tensors are of type `dtype` at these places of files.
    pub(super) fn new(
        tensors: Vec<(&'a FileBytes, Range<usize>)>,
        dtype: DType,
        spec: &WeightSpec,
        rank: usize,
    ) -> Self {
        let part = spec.part(rank);
        let bytes_below = |dim: usize| spec.shape.iter().skip(dim + 1).product::<usize>() * dtype.size_bytes() as usize;
        let num_rows = spec.local_shape().first().copied().unwrap_or(1);
        let tensors = tensors.into_iter().map(|(file, range)| Pages { file, range }).collect();
        let (row_bytes, index_bytes) = (bytes_below(0), bytes_below(part.dim));
        Self { dtype, tensors, layout: Layout::of(spec), part, num_rows, row_bytes, index_bytes }
    }

    /// All rows.
    pub(crate) fn all(&self) -> TensorRows<'a> {
        self.rows(0..self.num_rows)
    }

    /// Reads the rows with these indices.
    pub(crate) fn rows(&self, rows: Range<usize>) -> TensorRows<'a> {
        let WeightPart { dim, start, len, padding } = self.part;
        match self.layout {
            Layout::Rows if dim == 0 => {}
            Layout::Rows | Layout::Section { .. } | Layout::Stack => return self.gather(rows),
            Layout::Columns { section, len } => return self.gather_columns(rows, section, len),
        }
        let Pages { file, range: ref tensor } = self.tensors[0];
        let at = |row: usize| tensor.start + (start + row.min(len)) * self.row_bytes;
        let range = at(rows.start)..at(rows.end);
        let stored = &file.bytes()[range.clone()];
        let is_whole = padding == 0 || rows.end <= len;
        let padded = || [stored, &vec![0; rows.len() * self.row_bytes - stored.len()]].concat();
        let bytes = if is_whole { Cow::Borrowed(stored) } else { Cow::Owned(padded()) };
        TensorRows { bytes, _pages: Pages { file, range } }
    }

    /// Rows that do not lie one after the other, or of which each has a piece.
    fn gather(&self, rows: Range<usize>) -> TensorRows<'a> {
        let WeightPart { dim, start, len, padding } = self.part;
        let (own, own_rows, padding_bytes) = if dim == 0 {
            (0..self.row_bytes, start..start + len, 0)
        } else {
            (start * self.index_bytes..(start + len) * self.index_bytes, 0..self.num_rows, padding * self.index_bytes)
        };
        let mut gathered = Vec::with_capacity(rows.len() * (own.len() + padding_bytes));
        let mut pages = Pages { file: self.tensors[0].file, range: 0..0 };
        for row in rows {
            let row = own_rows.start + row;
            if row >= own_rows.end {
                gathered.resize(gathered.len() + own.len(), 0);
                continue;
            }
            let (tensor, first) = self.place(row);
            if !std::ptr::eq(pages.file, tensor.file) || pages.range.end != first {
                pages = Pages { file: tensor.file, range: first..first };
            }
            gathered.extend_from_slice(&tensor.file.bytes()[first..][..self.row_bytes][own.clone()]);
            gathered.resize(gathered.len() + padding_bytes, 0);
            pages.pass(self.row_bytes);
        }
        TensorRows { bytes: Cow::Owned(gathered), _pages: pages }
    }

    /// Rows that are columns of a tensor. What was mapped stays until the whole part is dropped: every row passes all of it.
    fn gather_columns(&self, rows: Range<usize>, section: Section, group_len: usize) -> TensorRows<'a> {
        let WeightPart { dim, start, len, padding } = self.part;
        let size = self.dtype.size_bytes() as usize;
        let num_columns = self.row_bytes / size;
        let (own_rows, own_columns, padding_bytes) = if dim == 0 {
            (start..start + len, 0..num_columns, 0)
        } else {
            (0..self.num_rows, start..start + len, padding * size)
        };
        let Pages { file, range: ref tensor } = self.tensors[0];
        let stored_row_bytes = section.num_groups * section.group_rows * size;
        let mut gathered = Vec::with_capacity(rows.len() * (own_columns.len() * size + padding_bytes));
        for row in rows {
            let row = own_rows.start + row;
            if row >= own_rows.end {
                gathered.resize(gathered.len() + own_columns.len() * size, 0);
                continue;
            }
            let column = section.row(row, group_len);
            for stored_row in own_columns.clone() {
                let first = tensor.start + stored_row * stored_row_bytes + column * size;
                gathered.extend_from_slice(&file.bytes()[first..first + size]);
            }
            gathered.resize(gathered.len() + padding_bytes, 0);
        }
        TensorRows { bytes: Cow::Owned(gathered), _pages: Pages { file, range: 0..0 } }
    }

    /// The tensor that has a row of the weight, and where it begins there.
    fn place(&self, row: usize) -> (&Pages<'a>, usize) {
        let (tensor, row) = match self.layout {
            Layout::Rows | Layout::Columns { .. } => (&self.tensors[0], row),
            Layout::Section { section, len } => (&self.tensors[0], section.row(row, len)),
            Layout::Stack => (&self.tensors[row], 0),
        };
        (tensor, tensor.range.start + row * self.row_bytes)
    }
}

impl Layout {
    fn of(spec: &WeightSpec) -> Self {
        let num_rows = spec.shape.first().copied().unwrap_or(1);
        let whole = Section { num_groups: 1, group_rows: num_rows, first: 0 };
        match &spec.source {
            Source::Whole => Self::Rows,
            Source::Section { section, .. } => Self::Section { section: *section, len: num_rows / section.num_groups },
            Source::Transposed { section, .. } => {
                let section = section.unwrap_or(whole);
                Self::Columns { section, len: num_rows / section.num_groups }
            }
            Source::Stack(_) => Self::Stack,
        }
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
