//! Matrices in MXFP4, which `numbers::mxfp4` defines, as gpt-oss and GGUF files store them.
//!
//! Entry point: [`Mxfp4`].

use std::ops::Range;

use numbers::mxfp4::{BLOCK, number, scale};

use crate::weights::pages::Pages;

/// A matrix of blocks.
#[derive(Debug)]
pub(in crate::weights) struct Mxfp4<'a> {
    pub(in crate::weights) num_columns: usize,
    pub(in crate::weights) pages: Mxfp4Pages<'a>,
}

/// The bytes of a matrix of blocks.
#[derive(Debug)]
pub(in crate::weights) enum Mxfp4Pages<'a> {
    /// Blocks `[rows, blocks, 16]` and scales `[rows, blocks]`. A byte has two adjacent numbers, the first in its lower
    /// half.
    Apart { blocks: Pages<'a>, scales: Pages<'a> },
    /// `[rows, blocks, 17]`: a scale, and then 16 bytes. The lower halves of the bytes are the first 16 numbers, the
    /// upper halves the others.
    Together(Pages<'a>),
}

impl Mxfp4<'_> {
    pub(super) fn read(&self, rows: Range<usize>, floats: &mut Vec<f32>) {
        let numbers: [[f32; 2]; 256] = std::array::from_fn(|byte| [byte as u8 & 0xf, byte as u8 >> 4].map(number));
        let num_blocks = self.num_columns.div_ceil(BLOCK);
        for row in rows {
            let end = floats.len() + self.num_columns;
            match &self.pages {
                Mxfp4Pages::Apart { blocks, scales } => {
                    let scales = &scales.bytes()[row * num_blocks..][..num_blocks];
                    let row_bytes = num_blocks * BLOCK / 2;
                    let blocks = &blocks.bytes()[row * row_bytes..][..row_bytes];
                    for (block, stored) in blocks.chunks_exact(BLOCK / 2).zip(scales) {
                        let scale = scale(*stored);
                        let pair = |byte: &u8| numbers[usize::from(*byte)].map(|number| number * scale);
                        floats.extend(block.iter().flat_map(pair));
                    }
                }
                Mxfp4Pages::Together(pages) => {
                    let row_bytes = num_blocks * (1 + BLOCK / 2);
                    for block in pages.bytes()[row * row_bytes..][..row_bytes].chunks_exact(1 + BLOCK / 2) {
                        let scale = scale(block[0]);
                        let half = |half: usize| block[1..].iter().map(move |byte| [byte & 0xf, byte >> 4][half]);
                        floats.extend(half(0).chain(half(1)).map(|bits| number(bits) * scale));
                    }
                }
            }
            // The last block may have padding.
            floats.truncate(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::pages::FileBytes;

    fn read(num_columns: usize, blocks: &'static [u8], scales: &'static [u8], rows: Range<usize>) -> Vec<f32> {
        let [blocks, scales] = [blocks, scales].map(FileBytes::Embedded);
        let pages = |file| Pages { file, range: 0..FileBytes::bytes(file).len() };
        let mut floats = Vec::new();
        let pages = Mxfp4Pages::Apart { blocks: pages(&blocks), scales: pages(&scales) };
        Mxfp4 { num_columns, pages }.read(rows, &mut floats);
        floats
    }

    #[test]
    fn all_numbers_are_those_of_the_specification() {
        const ALL: [u8; 16] = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0x2f];
        let expected = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let floats = read(32, &ALL, &[127], 0..1);
        assert_eq!(floats[..8], expected);
        assert_eq!(floats[8..16], expected.map(|number| -number));
        assert!(floats[8].is_sign_negative());
        assert_eq!(floats[30..], [-6.0, 1.0]);
    }

    #[test]
    fn scales_multiply_their_blocks() {
        const BLOCKS: [u8; 64] = [0x72; 64];
        let floats = read(32, &BLOCKS, &[0, 254, 255, 130], 0..4);
        assert_eq!(floats[..2], [2.0_f64.powi(-127), 6.0 * 2.0_f64.powi(-127)].map(|number| number as f32));
        // The largest product is beyond the range of f32; loading reports it, as it does a NaN.
        assert_eq!(floats[32..34], [2.0_f32.powi(127), f32::INFINITY]);
        assert!(floats[64..96].iter().all(|value| value.is_nan()));
        assert_eq!(floats[96..98], [8.0, 48.0]);
    }

    #[test]
    fn blocks_of_gguf_files_have_their_scale_first_and_then_two_halves() {
        const BYTES: [u8; 34] = {
            let mut bytes = [0x42; 34];
            (bytes[17], bytes[18], bytes[33]) = (128, 0x71, 0x9a);
            bytes
        };
        let file = FileBytes::Embedded(&BYTES);
        let pages = Mxfp4Pages::Together(Pages { file: &file, range: 0..34 });
        let mut floats = Vec::new();
        Mxfp4 { num_columns: 32, pages }.read(1..2, &mut floats);
        assert_eq!((floats[0], floats[1], floats[15]), (1.0, 2.0, -2.0));
        assert_eq!((floats[16], floats[17], floats[31], floats.len()), (12.0, 4.0, -1.0, 32));
    }

    #[test]
    fn rows_begin_at_their_own_blocks() {
        const BLOCKS: [u8; 64] = {
            let mut blocks = [0x22; 64];
            blocks[32] = 0x64;
            blocks
        };
        // Each row has two blocks, of which the second has padding.
        let floats = read(40, &BLOCKS, &[127, 128, 126, 129], 1..2);
        assert_eq!(floats.len(), 40);
        assert_eq!((floats[0], floats[1], floats[2], floats[39]), (1.0, 2.0, 0.5, 4.0));
    }
}
