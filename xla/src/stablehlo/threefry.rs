//! Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, 2011) on tensors of 32-bit words. It returns the same
//! random numbers as the CPU backend.
//!
//! Entry points: [`uniform`] for a random number per row, [`context_uniform`] for one per row and token of the
//! vocabulary. The functions use integer arithmetic, then an exact conversion to f32 and an exact product, so every
//! device returns the same bits.

use model::graph::{CONTEXT_SEED_FACTOR, DType};

use super::emitter::Emitter;
use super::tensor::{Tensor, Type};

const PARITY: u32 = 0x1bd1_1bda;
const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];
const NUM_ROUNDS: usize = 20;

/// Returns one random number in [0, 1) per row, for the key (low, high) and the counter (counter, 0). All arguments and
/// the result are `[rows]`; the arguments are u32.
pub(super) fn uniform(emitter: &mut Emitter, low: &Tensor, high: &Tensor, counter: &Tensor) -> Tensor {
    let zero = emitter.splat(0.0, counter.ty.clone()); // [rows]
    numbers(emitter, [low, high], [counter, &zero]) // [rows]
}

/// Returns one random number in [0, 1) per row and token of the vocabulary, `[rows, vocab]`. The last token of a row's
/// context determines the row's numbers.
pub(super) fn context_uniform(emitter: &mut Emitter, last_tokens: &Tensor, vocab_size: usize) -> Tensor {
    let seeds = emitter.bitcast(last_tokens, DType::U32); // [rows]
    let factor = emitter.splat(f64::from(CONTEXT_SEED_FACTOR), seeds.ty.clone()); // [rows]
    let seeds = emitter.elementwise("multiply", &[&seeds, &factor]); // [rows]
    let ty = Type::new([seeds.dims()[0], vocab_size], DType::U32);
    let seeds = emitter.broadcast(&seeds, &[0], &ty.dims); // [rows, vocab]
    let tokens = emitter.iota(1, ty.clone()); // [rows, vocab]
    let [zero, one] = [0.0, 1.0].map(|number| emitter.splat(number, ty.clone())); // [rows, vocab]
    numbers(emitter, [&seeds, &zero], [&tokens, &one]) // [rows, vocab]
}

/// Returns random numbers in [0, 1) from keys and counters, all u32 of one shape. A number is the upper 24 bits of the
/// first output word, times 2⁻²⁴.
fn numbers(emitter: &mut Emitter, [low, high]: [&Tensor; 2], counter: [&Tensor; 2]) -> Tensor {
    let word = low.ty.clone();
    let constant = |emitter: &mut Emitter, value: u32| emitter.splat(f64::from(value), word.clone());
    let parity = constant(emitter, PARITY);
    let mixed = emitter.elementwise("xor", &[low, high]);
    let mixed = emitter.elementwise("xor", &[&mixed, &parity]);
    let keys = [low.clone(), high.clone(), mixed];
    let mut a = emitter.elementwise("add", &[counter[0], &keys[0]]);
    let mut b = emitter.elementwise("add", &[counter[1], &keys[1]]);
    for round in 0..NUM_ROUNDS {
        a = emitter.elementwise("add", &[&a, &b]);
        let rotation = ROTATIONS[round % ROTATIONS.len()];
        let (left, right) = (constant(emitter, rotation), constant(emitter, u32::BITS - rotation));
        let upper = emitter.elementwise("shift_left", &[&b, &left]);
        let lower = emitter.elementwise("shift_right_logical", &[&b, &right]);
        let rotated = emitter.elementwise("or", &[&upper, &lower]);
        b = emitter.elementwise("xor", &[&rotated, &a]);
        if round % 4 == 3 {
            let injection = round / 4 + 1;
            a = emitter.elementwise("add", &[&a, &keys[injection % 3]]);
            b = emitter.elementwise("add", &[&b, &keys[(injection + 1) % 3]]);
            let number = constant(emitter, injection as u32);
            b = emitter.elementwise("add", &[&b, &number]);
        }
    }
    let eight = constant(emitter, 8);
    let bits = emitter.elementwise("shift_right_logical", &[&a, &eight]);
    let numbers = emitter.convert(&bits, DType::F32);
    let unit = emitter.splat(1.0 / f64::from(1 << 24), Type::new(numbers.dims(), DType::F32));
    emitter.elementwise("multiply", &[&numbers, &unit]) // as the words
}
