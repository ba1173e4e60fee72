//! One tensor of a checkpoint: floats as stored in a file, or an encoded matrix from which floats are computed.
//!
//! Entry point: [`StoredTensor`]. The index of an element is its index in row-major order.

use std::ops::Range;

use numbers::FloatType;
use numbers::blocks::BlockType;

use super::encoding::Encoded;
use super::pages::Pages;

/// A tensor whose elements are read on request.
#[derive(Debug)]
pub(super) enum StoredTensor<'a> {
    Floats { dtype: FloatType, pages: Pages<'a> },
    Encoded(Encoded<'a>),
}

/// Reads ranges of tensors. If they are stored as floats, their pages are returned to the system after they were read.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    passed: Option<Pages<'a>>,
    floats: Vec<f32>,
}

impl<'a> StoredTensor<'a> {
    /// Returns the type of the elements after reading.
    pub(super) fn dtype(&self) -> FloatType {
        match self {
            Self::Floats { dtype, .. } => *dtype,
            Self::Encoded(_) => FloatType::F32,
        }
    }

    /// Returns the type and the pages of the blocks of the tensor, if it is stored in blocks and used as it is stored.
    pub(super) fn blocks(&self) -> Option<(BlockType, &Pages<'a>)> {
        match self {
            Self::Encoded(Encoded::Blocks(blocks)) => Some((blocks.block_type()?, &blocks.bytes)),
            Self::Encoded(_) | Self::Floats { .. } => None,
        }
    }

    /// Returns the pages of the elements, if the tensor is stored as floats.
    pub(super) fn floats(&self) -> Option<&Pages<'a>> {
        match self {
            Self::Floats { pages, .. } => Some(pages),
            Self::Encoded(_) => None,
        }
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new() -> Self {
        Self { passed: None, floats: Vec::new() }
    }

    /// Reads the range `elements` and appends the range `kept` of their bytes, counted from the first of these
    /// elements, to `bytes`. In an encoded matrix, `elements` must be whole rows.
    pub(super) fn append(
        &mut self,
        tensor: &StoredTensor<'a>,
        elements: &Range<usize>,
        kept: Range<usize>,
        bytes: &mut Vec<u8>,
    ) {
        match tensor {
            StoredTensor::Floats { dtype, pages } => {
                let size = dtype.size_bytes();
                self.append_stored(pages, elements.start * size..elements.end * size, kept, bytes);
            }
            StoredTensor::Encoded(matrix) => {
                let num_columns = matrix.num_columns();
                self.floats.clear();
                matrix.read(elements.start / num_columns..elements.end / num_columns, &mut self.floats);
                let size = size_of::<f32>();
                let kept = &self.floats[kept.start / size..kept.end / size];
                bytes.extend(kept.iter().flat_map(|value| value.to_le_bytes()));
            }
        }
    }

    /// Appends the range `kept` of the bytes `stored` of a tensor to `bytes`.
    pub(super) fn append_stored(
        &mut self,
        pages: &Pages<'a>,
        stored: Range<usize>,
        kept: Range<usize>,
        bytes: &mut Vec<u8>,
    ) {
        bytes.extend_from_slice(&pages.bytes()[stored.clone()][kept]);
        let passed = match self.passed.take() {
            Some(passed) if passed.ends_at(pages, stored.start) => passed,
            _ => pages.part(stored.start..stored.start),
        };
        self.passed.insert(passed).pass(stored.len());
    }

    /// Returns the pages that were read last and have not been returned to the system yet.
    pub(super) fn rest(self) -> Option<Pages<'a>> {
        self.passed
    }
}
