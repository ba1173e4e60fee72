//! The operations of samplers over a whole row, on the CPU.
//!
//! Each function is one arm of the executor's match. Shapes are not checked again, because the graph's builders have
//! checked them. A sampler runs for one row: `[rows]` is `[1]` and `[rows, vocab]` is `[1, vocab]`. Only `log_softmax`
//! and `gather_columns`, which prompt log-probabilities use too, see several rows.

use candle_core::{D, Tensor};
use model::graph::{CONTEXT_SEED_FACTOR, TokenScope};

use super::host::{self, View};
use super::step::Step;
use super::{selection, threefry};

type Result<T> = candle_core::Result<T>;

pub(super) fn sum_columns(x: &Tensor) -> Result<Tensor> {
    let sum = |row: &[f32]| row.iter().copied().map(f64::from).sum::<f64>() as f32;
    host::tensor(View::new(x)?.f32().chunks_exact(x.dim(D::Minus1)?).map(sum).collect()) // [rows]
}

pub(super) fn log_softmax(scores: &Tensor) -> Result<Tensor> {
    let mut logprobs = View::new(scores)?.f32().to_vec(); // [rows, vocab]
    logprobs.chunks_exact_mut(scores.dim(D::Minus1)?).for_each(kernels::softmax::log_softmax);
    host::shaped(logprobs, scores.shape())
}

pub(super) fn arg_max(scores: &Tensor) -> Result<Tensor> {
    // A row of only NaNs gets token 0, and the token's logprob is NaN.
    let best = kernels::softmax::argmax(View::new(scores)?.f32()).unwrap_or(0);
    host::tensor(vec![best as i32]) // [1]
}

pub(super) fn gather_columns(x: &Tensor, indices: &Tensor) -> Result<Tensor> {
    let (x_view, index_view) = (View::new(x)?, View::new(indices)?);
    let indices_per_row = if indices.rank() == 2 { indices.dim(1)? } else { 1 };
    let mut gathered = Vec::with_capacity(indices.elem_count());
    if indices_per_row > 0 {
        let rows = x_view.f32().chunks_exact(x.dim(1)?);
        for (row, indices) in rows.zip(index_view.i32().chunks_exact(indices_per_row)) {
            gathered.extend(indices.iter().map(|index| row[*index as usize]));
        }
    }
    host::shaped(gathered, indices.shape()) // as indices
}

pub(super) fn kth_largest(scores: &Tensor, k: &Tensor) -> Result<Tensor> {
    let k = View::new(k)?.i32()[0];
    let threshold = selection::kth_largest(View::new(scores)?.f32(), usize::try_from(k).unwrap_or(0));
    host::tensor(vec![threshold]) // [1]
}

pub(super) fn mass_threshold(keys: &Tensor, weights: &Tensor, mass: &Tensor) -> Result<Tensor> {
    let mass = View::new(mass)?.f32()[0];
    let threshold = selection::mass_threshold(View::new(keys)?.f32(), View::new(weights)?.f32(), f64::from(mass));
    host::tensor(vec![threshold]) // [1]
}

pub(super) fn token_counts(scope: TokenScope, vocab_size: usize, step: &Step<'_>) -> Result<Tensor> {
    let (sampled, row) = step.sampled_row();
    let positions = match scope {
        TokenScope::Context => 0..row.context_len,
        TokenScope::Generated => sampled.prompt_len..row.context_len,
    };
    let mut counts = vec![0.0_f32; vocab_size]; // [1, vocab]
    step.state.history.tokens(row.slot, positions).for_each(|token| counts[token as usize] += 1.0);
    host::shaped(counts, (1, vocab_size))
}

pub(super) fn held_back(vocab_size: usize, step: &Step<'_>) -> Result<Tensor> {
    let mut is_held_back = vec![0_u8; vocab_size]; // [1, vocab]
    step.sampled_row().0.held_back.iter().for_each(|token| is_held_back[*token as usize] = 1);
    host::shaped(is_held_back, (1, vocab_size))
}

pub(super) fn add_logit_bias(scores: &Tensor, step: &Step<'_>) -> Result<Tensor> {
    let mut biased = View::new(scores)?.f32().to_vec(); // [1, vocab]
    let logit_bias = &step.sampled_row().0.params.logit_bias;
    logit_bias.iter().for_each(|entry| biased[entry.token_id as usize] += entry.bias);
    host::shaped(biased, scores.shape())
}

pub(super) fn is_allowed(vocab_size: usize, step: &Step<'_>) -> Result<Tensor> {
    let is_allowed = match &step.sampled_row().0.mask {
        Some(mask) => (0..vocab_size).map(|token| u8::from(mask.has(token))).collect(), // [1, vocab]
        None => vec![1; vocab_size],
    };
    host::shaped(is_allowed, (1, vocab_size))
}

pub(super) fn uniform(words: [&Tensor; 3]) -> Result<Tensor> {
    let mut numbers = [0; 3];
    for (number, word) in numbers.iter_mut().zip(words) {
        *number = View::new(word)?.u32()[0];
    }
    let [low, high, counter] = numbers;
    host::tensor(vec![threefry::uniform([low, high], [counter, 0])]) // [1]
}

pub(super) fn context_uniform(vocab_size: usize, step: &Step<'_>) -> Result<Tensor> {
    let (_, row) = step.sampled_row();
    let last = step.state.history.tokens(row.slot, row.context_len - 1..row.context_len).next().unwrap_or(0);
    let seed = last.cast_unsigned().wrapping_mul(CONTEXT_SEED_FACTOR);
    let numbers = (0..vocab_size as u32).map(|token| threefry::uniform([seed, 0], [token, 1]));
    host::shaped(numbers.collect(), (1, vocab_size))
}

pub(super) fn inverse_cdf(probabilities: &Tensor, u: &Tensor) -> Result<Tensor> {
    let u = View::new(u)?.f32()[0];
    let token = selection::inverse_cdf(View::new(probabilities)?.f32(), f64::from(u));
    host::tensor(vec![token as i32]) // [1]
}

pub(super) fn top_tokens(scores: &Tensor, n: &Tensor) -> Result<Tensor> {
    let n = View::new(n)?.i32()[0];
    let ids = selection::top_tokens(View::new(scores)?.f32(), usize::try_from(n).unwrap_or(0));
    let ids: Vec<i32> = ids.into_iter().map(|id| id as i32).collect();
    let len = ids.len();
    host::shaped(ids, (1, len)) // [1, top_tokens]
}
