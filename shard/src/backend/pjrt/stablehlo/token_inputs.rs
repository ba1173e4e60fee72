//! What rows ask of single tokens of the vocabulary: the arrays of `token_input` as operations.
//!
//! Doors: [`add_logit_bias`], [`is_allowed`].

use super::emitter::Emitter;
use super::history::or_nowhere;
use super::tensor::{Tensor, Type};
use crate::graph::DType;

/// Scores `[rows, vocab]` with the biases `[2 * rows, n]` of [`TokenInput::LogitBias`](super::super::token_input::TokenInput).
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
    let place = or_nowhere(emitter, &is_token, &place, &flat); // [rows, n]
    let place = emitter.reshape(&place, &[num_biases]); // [rows * n]
    let values = emitter.reshape(&values, &[num_biases]); // [rows * n]
    let biased = emitter.scatter_rows(&flat, &place, &values, true); // [rows * vocab]
    emitter.reshape(&biased, &[rows, vocab_size]) // [rows, vocab]
}

/// Whether a bit of the masks `[rows, words]` is set, for each token of a vocabulary, `[rows, vocab]`.
pub(super) fn is_allowed(emitter: &mut Emitter, masks: &Tensor, vocab_size: usize) -> Tensor {
    let [rows, num_words] = [masks.dims()[0], masks.dims()[1]];
    let dims = [rows, num_words, 32];
    let words = emitter.broadcast(masks, &[0, 1], &dims); // [rows, words, 32]
    let places = emitter.iota(2, Type::new(dims, DType::I32)); // [rows, words, 32]
    let bits = emitter.elementwise("shift_right_logical", &[&words, &places]); // [rows, words, 32]
    let one = emitter.splat(1.0, bits.ty.clone()); // [rows, words, 32]
    let bits = emitter.elementwise("and", &[&bits, &one]); // [rows, words, 32]
    let bits = emitter.reshape(&bits, &[rows, num_words * 32]); // [rows, words * 32]
    let bits = emitter.slice(&bits, 1, 0..vocab_size); // [rows, vocab]
    let zero = emitter.splat(0.0, bits.ty.clone()); // [rows, vocab]
    emitter.compare("NE", &bits, &zero) // [rows, vocab]
}
