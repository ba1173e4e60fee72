//! Matrices of blocks as in GGUF files, decoded by candle: Q4_0 to Q8_0, Q2_K to Q6_K, and floats.
//!
//! Entry point: [`Blocks`].

use std::borrow::Cow;
use std::ops::Range;

use candle_core::CpuStorage;
use candle_core::quantized::GgmlDType;
use numbers::blocks::BlockType;

use crate::weights::pages::Pages;

/// A matrix whose rows consist of blocks, or a vector of floats as a matrix with one column.
#[derive(Debug)]
pub(in crate::weights) struct Blocks<'a> {
    pub(in crate::weights) num_columns: usize,
    pub(in crate::weights) bytes: Pages<'a>,
    pub(in crate::weights) kind: GgmlDType,
    /// The number that is added to each decoded element.
    pub(in crate::weights) added: f32,
}

impl Blocks<'_> {
    /// Returns the type of the blocks, if their weights are used as they are stored.
    pub(in crate::weights) fn block_type(&self) -> Option<BlockType> {
        if self.added != 0.0 {
            return None;
        }
        Some(match self.kind {
            GgmlDType::Q2K => BlockType::Q2_K,
            GgmlDType::Q3K => BlockType::Q3_K,
            GgmlDType::Q4_0 => BlockType::Q4_0,
            GgmlDType::Q4_1 => BlockType::Q4_1,
            GgmlDType::Q4K => BlockType::Q4_K,
            GgmlDType::Q5_0 => BlockType::Q5_0,
            GgmlDType::Q5_1 => BlockType::Q5_1,
            GgmlDType::Q5K => BlockType::Q5_K,
            GgmlDType::Q6K => BlockType::Q6_K,
            GgmlDType::Q8_0 => BlockType::Q8_0,
            GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 | GgmlDType::Q8_1 | GgmlDType::Q8K => return None,
        })
    }

    pub(super) fn read(&self, rows: Range<usize>, floats: &mut Vec<f32>) {
        let row_bytes = self.num_columns / self.kind.block_size() * self.kind.type_size();
        let bytes = &self.bytes.bytes()[rows.start * row_bytes..rows.end * row_bytes];
        let num_elements = rows.len() * self.num_columns;
        let decoded = self.kind.from_data(Cow::Borrowed(bytes)).dequantize(num_elements);
        let known = floats.len();
        match decoded {
            Ok(CpuStorage::F32(decoded)) => floats.extend(decoded.iter().map(|value| value + self.added)),
            // The caller that reads the weight finds the NaN and reports it.
            Ok(_) | Err(_) => floats.resize(known + num_elements, f32::NAN),
        }
    }
}
