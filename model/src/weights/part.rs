//! A rank's part of a weight, read by rows. Rows are borrowed from the file if the weight is a whole tensor of floats
//! that ranks do not split or split by rows, and no padding is needed; otherwise they are gathered into new memory.
//!
//! Entry points: [`TensorPart::rows`], [`TensorPart::all`]; [`TensorPart::blocks`] and [`TensorPart::rows_of_blocks`]
//! for weights that stay in the blocks of a GGUF file. The part records the first tensor in which it reads an infinity
//! or a NaN.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use numbers::blocks::BlockType;
use numbers::{FloatType, floats};

use super::encoding::Encoded;
use super::pages::Pages;
use super::tensor::{Reader, StoredTensor};
use crate::graph::{Section, Source, Stride, WeightPart, WeightSpec};

/// The number of inputs of a matrix that are transposed together, so that reads and writes share cache lines.
const INPUTS_TOGETHER: usize = 32;

/// The part of a weight that a rank has. Rows are read when they are requested.
#[derive(Debug)]
pub struct TensorPart<'a> {
    /// The type of the elements.
    pub dtype: FloatType,
    /// The whole tensors in their files. When they are dropped, all their pages are returned to the system, including
    /// neighbouring pages that the kernel mapped along with the parts that were read.
    tensors: Vec<StoredTensor<'a>>,
    layout: Layout,
    part: WeightPart,
    /// The size of the part's first dimension.
    num_rows: usize,
    /// The number of elements of a row of the weight.
    row_len: usize,
    /// The number of elements at one index of the dimension that ranks split.
    index_len: usize,
    /// The index of the first tensor in which an infinity or a NaN was read.
    not_finite: OnceLock<usize>,
}

/// The location of the rows of a weight.
#[derive(Debug, Clone, Copy)]
enum Layout {
    /// The rows are one after another in a tensor.
    Rows,
    /// The rows are some rows of a tensor: `len` of them in each of its groups.
    Section { section: Section, len: usize },
    /// The rows are some columns of a transposed tensor: `len` of them in each of its groups.
    Columns { section: Section, len: usize },
    /// Each row is the matrix of a head: `len` rows of a tensor, transposed if `is_transposed`.
    Heads { section: Section, len: usize, is_transposed: bool },
    /// Each row is a tensor of its own.
    Stack,
    /// Each row consists of some columns of a matrix `[num_inputs, ..]`, which are its `num_outputs` outputs.
    Experts { columns: Stride, num_outputs: usize, num_inputs: usize },
}

/// Some rows of a part, that is, some indices of its first dimension.
#[derive(Debug)]
pub struct TensorRows<'a> {
    /// Little-endian elements in row-major order. The bytes may be unaligned.
    pub bytes: Cow<'a, [u8]>,
    _pages: Option<Pages<'a>>,
}

impl<'a> TensorPart<'a> {
    /// Returns the part that `rank` has of the weight `spec`, which consists of `tensors`. The tensors have one type.
    pub(super) fn new(tensors: Vec<StoredTensor<'a>>, spec: &WeightSpec, rank: usize) -> Self {
        let part = spec.part(rank);
        let len_below = |dim: usize| spec.shape.iter().skip(dim + 1).product::<usize>();
        Self {
            dtype: tensors.first().map_or(spec.dtype, StoredTensor::dtype),
            tensors,
            layout: Layout::of(spec),
            part,
            num_rows: spec.local_shape().first().copied().unwrap_or(1),
            row_len: len_below(0),
            index_len: len_below(part.dim),
            not_finite: OnceLock::new(),
        }
    }

    /// Reads all rows.
    pub fn all(&self) -> TensorRows<'a> {
        self.rows(0..self.num_rows)
    }

    /// Reads the rows with these indices; indices beyond the weight give rows of zeros.
    pub fn rows(&self, rows: Range<usize>) -> TensorRows<'a> {
        let WeightPart { dim, start, len, .. } = self.part;
        match self.layout {
            Layout::Rows if dim == 0 => {}
            Layout::Rows | Layout::Section { .. } | Layout::Stack => return self.gather(rows, None),
            Layout::Columns { section, len } => return self.gather_columns(rows, section, len),
            Layout::Heads { section, len, is_transposed } => {
                return self.gather_heads(rows, section, (len, is_transposed));
            }
            Layout::Experts { columns, num_outputs, num_inputs } => {
                return self.gather_experts(rows, columns, [num_outputs, num_inputs]);
            }
        }
        let Some(tensor) = self.tensors[0].floats() else {
            return self.gather(rows, None);
        };
        let at = |row: usize| (start + row.min(len)) * self.row_len * self.element_bytes();
        let pages = tensor.part(at(rows.start)..at(rows.end));
        let stored = pages.bytes();
        self.check(0, floats::are_finite(stored, self.dtype));
        let num_bytes = rows.len() * self.row_len * self.element_bytes();
        let padded = || [stored, &vec![0; num_bytes - stored.len()]].concat();
        let bytes = if stored.len() == num_bytes { Cow::Borrowed(stored) } else { Cow::Owned(padded()) };
        TensorRows { bytes, _pages: Some(pages) }
    }

    /// True if the checkpoint stores the elements in MXFP4.
    pub fn is_mxfp4(&self) -> bool {
        self.tensors.iter().all(|tensor| matches!(tensor, StoredTensor::Encoded(Encoded::Mxfp4(_))))
    }

    /// Returns the type of the blocks in which the checkpoint stores the part, or `None` if it stores it in another
    /// form, or a row of the part does not consist of whole blocks.
    pub fn blocks(&self) -> Option<BlockType> {
        if !matches!(self.layout, Layout::Rows | Layout::Section { .. } | Layout::Stack) {
            return None;
        }
        let (kind, _) = self.tensors.first()?.blocks()?;
        let WeightPart { dim, start, len, padding } = self.part;
        let lens = if dim == 0 { [self.row_len; 3] } else { [start, len, padding].map(|len| len * self.index_len) };
        let has_whole_blocks = lens.iter().all(|len| len.is_multiple_of(kind.block_len()));
        let is_same = |tensor: &StoredTensor<'_>| tensor.blocks().is_some_and(|(other, _)| other == kind);
        (has_whole_blocks && self.tensors.iter().all(is_same)).then_some(kind)
    }

    /// Reads the blocks, of the type that [`TensorPart::blocks`] returns, of the rows with these indices. Indices
    /// beyond the weight give blocks of zeros.
    pub fn rows_of_blocks(&self, kind: BlockType, rows: Range<usize>) -> TensorRows<'a> {
        self.gather(rows, Some(kind))
    }

    /// Returns the index of the first tensor in which an infinity or a NaN was read, if there is one.
    pub(super) fn not_finite(&self) -> Option<usize> {
        self.not_finite.get().copied()
    }

    /// Reads rows that are not contiguous, of which each rank has only some columns, or that are encoded; if `blocks`
    /// is given, the rows stay in blocks of that type.
    fn gather(&self, rows: Range<usize>, blocks: Option<BlockType>) -> TensorRows<'a> {
        let bytes_of = |elements: usize| match blocks {
            None => elements * self.element_bytes(),
            Some(kind) => elements / kind.block_len() * kind.block_bytes(),
        };
        let WeightPart { dim, start, len, padding } = self.part;
        let (own, own_rows, padding) = if dim == 0 {
            (0..self.row_len, start..start + len, 0)
        } else {
            (start * self.index_len..(start + len) * self.index_len, 0..self.num_rows, padding * self.index_len)
        };
        let own = bytes_of(own.start)..bytes_of(own.end);
        let mut gathered = Vec::with_capacity(rows.len() * (own.len() + bytes_of(padding)));
        let mut reader = Reader::new();
        for row in rows {
            let row = own_rows.start + row;
            if row >= own_rows.end {
                gathered.resize(gathered.len() + own.len(), 0);
                continue;
            }
            let (tensor, first) = self.place(row);
            let (known, last) = (gathered.len(), first + self.row_len);
            match blocks.and_then(|kind| Some((kind, self.tensors[tensor].blocks()?.1))) {
                None => {
                    reader.append(&self.tensors[tensor], &(first..last), own.clone(), &mut gathered);
                    self.check(tensor, floats::are_finite(&gathered[known..], self.dtype));
                }
                Some((kind, pages)) => {
                    reader.append_stored(pages, bytes_of(first)..bytes_of(last), own.clone(), &mut gathered);
                    self.check(tensor, kind.are_finite(&gathered[known..]));
                }
            }
            gathered.resize(gathered.len() + bytes_of(padding), 0);
        }
        TensorRows { bytes: Cow::Owned(gathered), _pages: reader.rest() }
    }

    /// Reads rows that are columns of a tensor. Pages stay in memory until the whole part is dropped, because the
    /// elements of every row are spread over the whole tensor.
    fn gather_columns(&self, rows: Range<usize>, section: Section, group_len: usize) -> TensorRows<'a> {
        let WeightPart { dim, start, len, padding } = self.part;
        let size = self.element_bytes();
        let (own_rows, own_columns, padding_bytes) = if dim == 0 {
            (start..start + len, 0..self.row_len, 0)
        } else {
            (0..self.num_rows, start..start + len, padding * size)
        };
        let stored_row_len = section.num_groups * section.group_rows;
        let stored = self.tensors[0].floats().expect("Checkpoint::read refuses encoded transposes").bytes();
        let mut gathered = Vec::with_capacity(rows.len() * (own_columns.len() * size + padding_bytes));
        for row in rows {
            let row = own_rows.start + row;
            if row >= own_rows.end {
                gathered.resize(gathered.len() + own_columns.len() * size, 0);
                continue;
            }
            let column = section.row(row, group_len);
            for stored_row in own_columns.clone() {
                let first = (stored_row * stored_row_len + column) * size;
                gathered.extend_from_slice(&stored[first..first + size]);
            }
            gathered.resize(gathered.len() + padding_bytes, 0);
        }
        self.check(0, floats::are_finite(&gathered, self.dtype));
        TensorRows { bytes: Cow::Owned(gathered), _pages: None }
    }

    /// Reads the matrices of some heads, one per row: `len` rows of a tensor each, transposed if `is_transposed`. Rows
    /// beyond the weight are zeros.
    fn gather_heads(
        &self,
        heads: Range<usize>,
        section: Section,
        (len, is_transposed): (usize, bool),
    ) -> TensorRows<'a> {
        let size = self.element_bytes();
        let num_columns = self.row_len / len;
        let mut gathered = vec![0; heads.len() * self.row_len * size];
        let mut reader = Reader::new();
        let matrices = heads.zip(gathered.chunks_exact_mut(self.row_len * size));
        for (head, to) in matrices.filter(|(head, _)| *head < self.part.len) {
            let first = (self.part.start + head) * section.group_rows + section.first;
            let mut stored = Vec::with_capacity(to.len());
            for row in (first..first + len).map(|row| row * num_columns..(row + 1) * num_columns) {
                reader.append(&self.tensors[0], &row, 0..num_columns * size, &mut stored);
            }
            let all = Stride { first: 0, step: 1, parts: 1 };
            match (is_transposed, size) {
                (false, _) => to.copy_from_slice(&stored),
                (true, 2) => transpose::<2>(&stored, all, [num_columns, len], to),
                (true, _) => transpose::<4>(&stored, all, [num_columns, len], to),
            }
        }
        self.check(0, floats::are_finite(&gathered, self.dtype));
        TensorRows { bytes: Cow::Owned(gathered), _pages: reader.rest() }
    }

    /// Reads the matrices of some experts, one per row. Rows beyond the weight are zeros.
    fn gather_experts(
        &self,
        rows: Range<usize>,
        columns: Stride,
        [num_outputs, num_inputs]: [usize; 2],
    ) -> TensorRows<'a> {
        let WeightPart { dim: _, start, len, padding: _ } = self.part;
        let size = self.element_bytes();
        let stored_outputs = num_outputs * columns.parts;
        let mut gathered = vec![0; rows.len() * self.row_len * size];
        let mut floats = Vec::new();
        for (row, to) in rows.zip(gathered.chunks_exact_mut(self.row_len * size)).filter(|(row, _)| *row < len) {
            let expert = start + row;
            match &self.tensors[0] {
                StoredTensor::Floats { pages, .. } => {
                    let matrix_bytes = num_inputs * stored_outputs * size;
                    let matrix = pages.part(expert * matrix_bytes..(expert + 1) * matrix_bytes);
                    match size {
                        2 => transpose::<2>(matrix.bytes(), columns, [stored_outputs, num_inputs], to),
                        _ => transpose::<4>(matrix.bytes(), columns, [stored_outputs, num_inputs], to),
                    }
                }
                StoredTensor::Encoded(matrices) => {
                    for (output, to) in to.chunks_exact_mut(num_inputs * size).enumerate() {
                        let stored_row = expert * stored_outputs + columns.first + output * columns.step;
                        floats.clear();
                        matrices.read(stored_row..stored_row + 1, &mut floats);
                        let values = to.as_chunks_mut().0.iter_mut().zip(&floats);
                        values.for_each(|(to, value)| *to = value.to_le_bytes());
                    }
                }
            }
        }
        self.check(0, floats::are_finite(&gathered, self.dtype));
        TensorRows { bytes: Cow::Owned(gathered), _pages: None }
    }

    /// Returns the index of the tensor that contains a row of the weight, and the row's first element in it.
    fn place(&self, row: usize) -> (usize, usize) {
        let (tensor, row) = match self.layout {
            Layout::Rows | Layout::Columns { .. } | Layout::Heads { .. } | Layout::Experts { .. } => (0, row),
            Layout::Section { section, len } => (0, section.row(row, len)),
            Layout::Stack => (row, 0),
        };
        (tensor, row * self.row_len)
    }

    fn element_bytes(&self) -> usize {
        self.dtype.size_bytes()
    }

    fn check(&self, tensor: usize, is_finite: bool) {
        if !is_finite {
            let _ = self.not_finite.set(tensor);
        }
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
            Source::Heads { section, is_transposed, .. } => {
                let len = if *is_transposed { spec.shape[2] } else { spec.shape[1] };
                Self::Heads { section: *section, len, is_transposed: *is_transposed }
            }
            Source::Stack(_) => Self::Stack,
            Source::Columns { columns, .. } => {
                let num_inputs = spec.shape.get(2).copied().unwrap_or(1);
                Self::Experts { columns: *columns, num_outputs: spec.shape[1], num_inputs }
            }
        }
    }
}

/// Writes some columns of a matrix `[inputs, outputs]` of elements of `SIZE` bytes to `to`, as rows.
fn transpose<const SIZE: usize>(stored: &[u8], columns: Stride, [num_outputs, num_inputs]: [usize; 2], to: &mut [u8]) {
    let (stored, to) = (stored.as_chunks::<SIZE>().0, to.as_chunks_mut::<SIZE>().0);
    for first in (0..num_inputs).step_by(INPUTS_TOGETHER) {
        let inputs = first..(first + INPUTS_TOGETHER).min(num_inputs);
        for (output, to) in to.chunks_exact_mut(num_inputs).enumerate() {
            let column = columns.first + output * columns.step;
            for (to, input) in to[inputs.clone()].iter_mut().zip(inputs.clone()) {
                *to = stored[input * num_outputs + column];
            }
        }
    }
}
