//! Matrices of blocks as in GGUF files, decoded by candle: Q4_0 to Q8_0, Q2_K to Q6_K, and floats.
//!
//! Entry point: [`Blocks`].

use std::borrow::Cow;
use std::ops::Range;

use candle_core::CpuStorage;
use candle_core::quantized::GgmlDType;

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
