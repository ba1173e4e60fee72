//! The operations that read the arrays of `token_input`: biases and masks for single tokens of the vocabulary.
//!
//! Entry points: [`add_logit_bias`], [`is_allowed`].

use model::graph::DType;

use super::emitter::{Combine, Emitter};
use super::history::or_out_of_bounds;
use super::tensor::{Tensor, Type};

/// The size of the last dimension of a tile in a TPU's memory.
const LANES: usize = 128;
/// Bits of a word of a mask.
const WORD_BITS: usize = 32;
/// The number of words with the bits of [`LANES`] tokens.
const WORDS_PER_LINE: usize = LANES / WORD_BITS;

/// Returns scores `[rows, vocab]` plus the biases `[2 * rows, n]` of
/// [`TokenInput::LogitBias`](super::super::token_input::TokenInput).
pub(super) fn add_logit_bias(emitter: &mut Emitter, scores: &Tensor, biases: &Tensor) -> Tensor {
    let [rows, vocab_size] = [scores.dims()[0], scores.dims()[1]];
    let num_biases = rows * biases.dims()[1];
    let token_ids = emitter.slice(biases, 0, 0..rows); // [rows, n]
    let values = emitter.slice(biases, 0, rows..2 * rows); // [rows, n]
    let values = emitter.bitcast(&values, DType::F32); // [rows, n]
    let row = emitter.iota(0, token_ids.ty.clone()); // [rows, n]
    let stride = emitter.splat(vocab_size as f64, token_ids.ty.clone()); // [rows, n]
    let place = emitter.elementwise("multiply", &[&row, &stride]); // [rows, n]
    let place = emitter.elementwise("add", &[&place, &token_ids]); // [rows, n]
    let zero = emitter.splat(0.0, token_ids.ty.clone()); // [rows, n]
    let is_token = emitter.compare("GE", &token_ids, &zero); // [rows, n]
    let flat = emitter.reshape(scores, &[rows * vocab_size]); // [rows * vocab]
    let place = or_out_of_bounds(emitter, &is_token, &place, &flat); // [rows, n]
    let place = emitter.reshape(&place, &[num_biases]); // [rows * n]
    let values = emitter.reshape(&values, &[num_biases]); // [rows * n]
    let biased = emitter.scatter_rows(&flat, &place, &values, Combine::Add); // [rows * vocab]
    emitter.reshape(&biased, &[rows, vocab_size]) // [rows, vocab]
}

/// Expands masks `[rows, words]` to bools `[rows, vocab]`: true if the bit of the token is set.
///
/// The bits are computed as `[.., LANES]`, because a TPU pads the last dimension to [`LANES`]: `[.., 32]`, the bits of
/// each word, would take four times the memory. The barriers keep XLA from moving the reshape to the operations that
/// compute the scores.
pub(super) fn is_allowed(emitter: &mut Emitter, masks: &Tensor, vocab_size: usize) -> Tensor {
    let rows = masks.dims()[0];
    let num_lines = vocab_size.div_ceil(LANES);
    let zero = emitter.scalar(0.0, DType::I32);
    let masks = emitter.pad_last(masks, &zero, num_lines * WORDS_PER_LINE); // [rows, lines * words per line]
    let masks = emitter.reshape(&masks, &[rows, num_lines, WORDS_PER_LINE]); // [rows, lines, words per line]
    let dims = [rows, num_lines, LANES];
    let lane = emitter.iota(2, Type::new(dims, DType::I32)); // [rows, lines, LANES]
    let mut words: Option<Tensor> = None;
    for index in (0..WORDS_PER_LINE).rev() {
        let word = emitter.slice(&masks, 2, index..index + 1); // [rows, lines, 1]
        let word = emitter.reshape(&word, &[rows, num_lines]); // [rows, lines]
        let word = emitter.broadcast(&word, &[0, 1], &dims); // [rows, lines, LANES]
        words = Some(match words {
            None => word,
            Some(later) => {
                let end = emitter.splat(((index + 1) * WORD_BITS) as f64, lane.ty.clone()); // [rows, lines, LANES]
                let is_here = emitter.compare("LT", &lane, &end); // [rows, lines, LANES]
                emitter.select(&is_here, &word, &later) // [rows, lines, LANES]
            }
        });
    }
    let words = words.expect("a line has words");
    let last = emitter.splat((WORD_BITS - 1) as f64, lane.ty.clone()); // [rows, lines, LANES]
    let place = emitter.elementwise("and", &[&lane, &last]); // [rows, lines, LANES]
    let bits = emitter.elementwise("shift_right_logical", &[&words, &place]); // [rows, lines, LANES]
    let one = emitter.splat(1.0, lane.ty.clone()); // [rows, lines, LANES]
    let bits = emitter.elementwise("and", &[&bits, &one]); // [rows, lines, LANES]
    let is_allowed = emitter.compare("EQ", &bits, &one); // [rows, lines, LANES]
    let is_allowed = emitter.barrier(&is_allowed); // [rows, lines, LANES]
    let is_allowed = emitter.reshape(&is_allowed, &[rows, num_lines * LANES]); // [rows, lines * LANES]
    let is_allowed = emitter.slice(&is_allowed, 1, 0..vocab_size); // [rows, vocab]
    emitter.barrier(&is_allowed) // [rows, vocab]
}
