//! Matrices of blocks as in GGUF files, or of floats.
//!
//! Entry point: [`Blocks`]. Candle decodes the types of blocks that it has, because it is about twice as fast as
//! [`BlockType::read`], which decodes the others.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::CpuStorage;
use candle_core::quantized::GgmlDType;
use numbers::blocks::BlockType;
use numbers::floats;

use crate::weights::gguf::GgufType;
use crate::weights::pages::Pages;

/// A matrix whose rows consist of blocks, or a vector of floats as a matrix with one column.
#[derive(Debug)]
pub(in crate::weights) struct Blocks<'a> {
    pub(in crate::weights) num_columns: usize,
    pub(in crate::weights) bytes: Pages<'a>,
    pub(in crate::weights) kind: GgufType,
    /// The number that is added to each decoded element.
    pub(in crate::weights) added: f32,
}

impl Blocks<'_> {
    /// Returns the type of the blocks, if their weights are used as they are stored.
    pub(in crate::weights) fn block_type(&self) -> Option<BlockType> {
        match self.kind {
            GgufType::Blocks(kind) if self.added == 0.0 => Some(kind),
            GgufType::Blocks(_) | GgufType::Floats(_) => None,
        }
    }

    pub(super) fn read(&self, rows: Range<usize>, floats: &mut Vec<f32>) {
        let row_bytes = self.num_columns / self.kind.block_len() * self.kind.block_bytes();
        let bytes = &self.bytes.bytes()[rows.start * row_bytes..rows.end * row_bytes];
        let known = floats.len();
        match self.kind {
            GgufType::Floats(dtype) => floats::read(bytes, dtype, floats),
            GgufType::Blocks(kind) => match of_candle(kind) {
                Some(kind) => decode(kind, bytes, rows.len() * self.num_columns, floats),
                None => kind.read(bytes, floats),
            },
        }
        floats[known..].iter_mut().for_each(|float| *float += self.added);
    }
}

/// Returns candle's name of a type; `None` if candle does not have the type.
fn of_candle(kind: BlockType) -> Option<GgmlDType> {
    Some(match kind {
        BlockType::IQ4_NL | BlockType::IQ4_XS => return None,
        BlockType::Q2_K => GgmlDType::Q2K,
        BlockType::Q3_K => GgmlDType::Q3K,
        BlockType::Q4_0 => GgmlDType::Q4_0,
        BlockType::Q4_1 => GgmlDType::Q4_1,
        BlockType::Q4_K => GgmlDType::Q4K,
        BlockType::Q5_0 => GgmlDType::Q5_0,
        BlockType::Q5_1 => GgmlDType::Q5_1,
        BlockType::Q5_K => GgmlDType::Q5K,
        BlockType::Q6_K => GgmlDType::Q6K,
        BlockType::Q8_0 => GgmlDType::Q8_0,
    })
}

/// Appends the elements of some blocks to `floats`.
fn decode(kind: GgmlDType, blocks: &[u8], num_elements: usize, floats: &mut Vec<f32>) {
    match kind.from_data(Cow::Borrowed(blocks)).dequantize(num_elements) {
        Ok(CpuStorage::F32(decoded)) => floats.extend(decoded),
        // The caller that reads the weight finds the NaN and reports it.
        Ok(_) | Err(_) => floats.resize(floats.len() + num_elements, f32::NAN),
    }
}
