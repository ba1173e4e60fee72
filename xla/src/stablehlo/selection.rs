//! Order statistics of rows of scores without sorting them: thresholds by binary search over the bits of a key, the
//! best n, the inverse of the cumulative distribution.
//!
//! A binary search passes 32 times over the scores, whatever the size of the vocabulary. The search is skipped if k, n
//! or the mass is 0 in every row. Sums are f32, but the CPU backend sums in f64. So if a probability mass ends within
//! the rounding error of the boundary between two tokens, the two backends may choose different tokens.

use model::graph::DType;

use super::emitter::{Emitter, Reduction};
use super::tensor::{Tensor, Type};

/// The number of tokens in a block of [`inverse_cdf`], which first finds the block and then the token in it.
const CDF_BLOCK: usize = 512;

/// Returns the k-th largest of each row of scores `[rows, vocab]`, `[rows]`, for k `[rows]` i32; minus infinity where k
/// is 0.
pub(super) fn kth_largest(emitter: &mut Emitter, scores: &Tensor, k: &Tensor) -> Tensor {
    let negated = emitter.elementwise("negate", &[scores]); // [rows, vocab]
    let ones = emitter.splat(1.0, scores.ty.clone()); // [rows, vocab]
    let mass = emitter.convert(k, DType::F32); // [rows]
    let smallest = mass_threshold(emitter, &negated, &ones, &mass); // [rows]
    let threshold = emitter.elementwise("negate", &[&smallest]); // [rows]
    let zero = emitter.splat(0.0, k.ty.clone()); // [rows]
    let is_on = emitter.compare("GT", k, &zero); // [rows]
    let never = emitter.splat(f64::NEG_INFINITY, threshold.ty.clone()); // [rows]
    emitter.select(&is_on, &threshold, &never) // [rows]
}

/// Returns a key of each row of keys `[rows, vocab]`: the smallest key such that the weights of all keys up to and
/// including it sum to at least mass `[rows]`, or the largest key if all weights sum to less.
pub(super) fn mass_threshold(emitter: &mut Emitter, keys: &Tensor, weights: &Tensor, mass: &Tensor) -> Tensor {
    let orders = ordered(emitter, keys); // [rows, vocab]
    let per_row = Type::new(mass.dims(), DType::U32);
    let prefix = emitter.splat(0.0, per_row.clone()); // [rows]
    let most = emitter.reduce(Reduction::Max, mass, &[0]);
    let none = emitter.scalar(0.0, DType::F32);
    let is_any = emitter.compare("GT", &most, &none);
    let [first_bit, done] = [31.0, -1.0].map(|bit| emitter.scalar(bit, DType::I32));
    let first_bit = emitter.select(&is_any, &first_bit, &done);
    let zero = emitter.scalar(0.0, DType::I32);
    let found = emitter.repeat(
        &[first_bit, prefix],
        |emitter, values| emitter.compare("GE", &values[0], &zero),
        |emitter, values| {
            let [bit, prefix] = [&values[0], &values[1]];
            let one = emitter.scalar(1.0, DType::U32);
            let shift = emitter.convert(bit, DType::U32);
            let digit = emitter.elementwise("shift_left", &[&one, &shift]);
            let below = emitter.elementwise("subtract", &[&digit, &one]);
            let below = emitter.broadcast(&below, &[], mass.dims()); // [rows]
            // The largest key that begins with the prefix and has 0 as the next digit.
            let candidate = emitter.elementwise("or", &[prefix, &below]); // [rows]
            let candidate = emitter.broadcast(&candidate, &[0], keys.dims()); // [rows, vocab]
            let is_up_to = emitter.compare("LE", &orders, &candidate); // [rows, vocab]
            let none = emitter.splat(0.0, weights.ty.clone()); // [rows, vocab]
            let kept = emitter.select(&is_up_to, weights, &none); // [rows, vocab]
            let sum = emitter.reduce(Reduction::Sum, &kept, &[1]); // [rows]
            let is_reached = emitter.compare("GE", &sum, mass); // [rows]
            let digit = emitter.broadcast(&digit, &[], mass.dims()); // [rows]
            let raised = emitter.elementwise("or", &[prefix, &digit]); // [rows]
            let prefix = emitter.select(&is_reached, prefix, &raised); // [rows]
            let one = emitter.scalar(1.0, DType::I32);
            let bit = emitter.elementwise("subtract", &[bit, &one]);
            vec![bit, prefix]
        },
    );
    let largest = emitter.reduce(Reduction::Max, &orders, &[1]); // [rows]
    let smallest = emitter.reduce(Reduction::Min, &orders, &[1]); // [rows]
    let order = emitter.elementwise("minimum", &[&found[1], &largest]); // [rows]
    // A mass of 0 is reached before the smallest key.
    let order = emitter.elementwise("maximum", &[&order, &smallest]); // [rows]
    from_ordered(emitter, &order)
}

/// Returns the best tokens of each row of scores `[rows, vocab]`, `[rows, num_tokens]`: the tokens whose scores are at
/// least the n-th largest of the row, for n `[rows]` i32; none where n is 0. The best token comes first; of tokens with
/// equal scores the lowest id comes first. Tokens with a score of minus infinity are left out. Unused entries at the
/// end are -1, and tokens beyond `num_tokens` are dropped.
pub(super) fn top_tokens(emitter: &mut Emitter, scores: &Tensor, n: &Tensor, num_tokens: usize) -> Tensor {
    let rows = scores.dims()[0];
    let threshold = kth_largest(emitter, scores, n); // [rows]
    let zero = emitter.splat(0.0, n.ty.clone()); // [rows]
    let is_wanted = emitter.compare("GT", n, &zero); // [rows]
    let tokens = emitter.iota(1, Type::new(scores.dims(), DType::I32)); // [rows, vocab]
    let places = emitter.iota(1, Type::new([rows, num_tokens], DType::I32)); // [rows, num_tokens]
    let never = emitter.splat(f64::NEG_INFINITY, scores.ty.clone()); // [rows, vocab]
    let start = emitter.scalar(0.0, DType::I32);
    let ids = emitter.splat(-1.0, Type::new([rows, num_tokens], DType::I32)); // [rows, num_tokens]
    let end = emitter.scalar(num_tokens as f64, DType::I32);
    let most = emitter.reduce(Reduction::Max, n, &[0]);
    let nothing = emitter.scalar(0.0, DType::I32);
    let mut found = emitter.repeat(
        &[start, scores.clone(), ids, most],
        |emitter, values| {
            let has_room = emitter.compare("LT", &values[0], &end);
            let may_have_more = emitter.compare("GT", &values[3], &nothing);
            emitter.elementwise("and", &[&has_room, &may_have_more])
        },
        |emitter, values| {
            let [place, rest, ids] = [&values[0], &values[1], &values[2]];
            let best = emitter.reduce(Reduction::Max, rest, &[1]); // [rows]
            let token = first_of(emitter, rest, &best, &tokens); // [rows]
            let is_enough = emitter.compare("GE", &best, &threshold); // [rows]
            let impossible = emitter.splat(f64::NEG_INFINITY, best.ty.clone()); // [rows]
            let is_possible = emitter.compare("GT", &best, &impossible); // [rows]
            let is_found = emitter.elementwise("and", &[&is_enough, &is_possible]); // [rows]
            let is_found = emitter.elementwise("and", &[&is_found, &is_wanted]); // [rows]
            let none = emitter.splat(-1.0, token.ty.clone()); // [rows]
            let id = emitter.select(&is_found, &token, &none); // [rows]
            let id = emitter.broadcast(&id, &[0], ids.dims()); // [rows, num_tokens]
            let here = emitter.broadcast(place, &[], ids.dims()); // [rows, num_tokens]
            let is_here = emitter.compare("EQ", &places, &here); // [rows, num_tokens]
            let ids = emitter.select(&is_here, &id, ids); // [rows, num_tokens]
            let taken = emitter.broadcast(&token, &[0], rest.dims()); // [rows, vocab]
            let is_taken = emitter.compare("EQ", &tokens, &taken); // [rows, vocab]
            let rest = emitter.select(&is_taken, &never, rest); // [rows, vocab]
            let one = emitter.scalar(1.0, DType::I32);
            let place = emitter.elementwise("add", &[place, &one]);
            // If this iteration found nothing in any row, the next one will not either.
            let finds = emitter.convert(&is_found, DType::I32); // [rows]
            let finds = emitter.reduce(Reduction::Max, &finds, &[0]);
            vec![place, rest, ids, finds]
        },
    );
    found.remove(2) // [rows, num_tokens]
}

/// Returns the index of the largest of scores `[rows, vocab]`, the lowest index among equals, `[rows]`; 0 for a row
/// with NaN.
pub(super) fn arg_max(emitter: &mut Emitter, scores: &Tensor) -> Tensor {
    let tokens = emitter.iota(1, Type::new(scores.dims(), DType::I32)); // [rows, vocab]
    let best = emitter.reduce(Reduction::Max, scores, &[1]); // [rows]
    let token = first_of(emitter, scores, &best, &tokens); // [rows]
    let end = emitter.splat(scores.dims()[1] as f64, token.ty.clone()); // [rows]
    let is_found = emitter.compare("LT", &token, &end); // [rows]
    let first = emitter.splat(0.0, token.ty.clone()); // [rows]
    emitter.select(&is_found, &token, &first) // [rows]
}

/// Returns the first token of probabilities `[rows, vocab]` whose cumulative probability exceeds u · total, `[rows]`
/// i32, for u `[rows]`. If rounding leaves no such token in the block that the sums of blocks select, returns the last
/// token up to the block's end with a probability above 0, or 0 if there is none.
pub(super) fn inverse_cdf(emitter: &mut Emitter, probabilities: &Tensor, u: &Tensor) -> Tensor {
    let [rows, vocab_size] = [probabilities.dims()[0], probabilities.dims()[1]];
    let num_blocks = vocab_size.div_ceil(CDF_BLOCK);
    let zero = emitter.scalar(0.0, DType::F32);
    let padded = emitter.pad_last(probabilities, &zero, num_blocks * CDF_BLOCK); // [rows, num_blocks * block]
    let blocks = emitter.reshape(&padded, &[rows, num_blocks, CDF_BLOCK]); // [rows, num_blocks, block]
    let sums = emitter.reduce(Reduction::Sum, &blocks, &[2]); // [rows, num_blocks]
    let cumulative = prefix_sums(emitter, &sums); // [rows, num_blocks]
    let total = emitter.slice(&cumulative, 1, num_blocks - 1..num_blocks); // [rows, 1]
    let total = emitter.reshape(&total, &[rows]); // [rows]
    let target = emitter.elementwise("multiply", &[u, &total]); // [rows]
    let targets = emitter.broadcast(&target, &[0], cumulative.dims()); // [rows, num_blocks]
    let is_before = emitter.compare("LE", &cumulative, &targets); // [rows, num_blocks]
    let ones = emitter.convert(&is_before, DType::I32); // [rows, num_blocks]
    let block = emitter.reduce(Reduction::Sum, &ones, &[1]); // [rows]
    let last_block = emitter.splat((num_blocks - 1) as f64, block.ty.clone()); // [rows]
    let block = emitter.elementwise("minimum", &[&block, &last_block]); // [rows]
    let none = emitter.splat(0.0, cumulative.ty.clone()); // [rows, num_blocks]
    let before = emitter.select(&is_before, &cumulative, &none); // [rows, num_blocks]
    let before = emitter.reduce(Reduction::Max, &before, &[1]); // [rows]

    let row = emitter.iota(0, block.ty.clone()); // [rows]
    let stride = emitter.splat(num_blocks as f64, block.ty.clone()); // [rows]
    let index = emitter.elementwise("multiply", &[&row, &stride]); // [rows]
    let index = emitter.elementwise("add", &[&index, &block]); // [rows]
    let flat = emitter.reshape(&blocks, &[rows * num_blocks, CDF_BLOCK]); // [rows * num_blocks, block]
    let chosen = emitter.gather_rows(&flat, &index); // [rows, block]
    let inside = prefix_sums(emitter, &chosen); // [rows, block]
    let before = emitter.broadcast(&before, &[0], inside.dims()); // [rows, block]
    let cumulative = emitter.elementwise("add", &[&inside, &before]); // [rows, block]
    let targets = emitter.broadcast(&target, &[0], inside.dims()); // [rows, block]
    let is_beyond = emitter.compare("GT", &cumulative, &targets); // [rows, block]
    let none = emitter.splat(0.0, chosen.ty.clone()); // [rows, block]
    let is_possible = emitter.compare("GT", &chosen, &none); // [rows, block]
    let is_it = emitter.elementwise("and", &[&is_beyond, &is_possible]); // [rows, block]
    let places = emitter.iota(1, Type::new(inside.dims(), DType::I32)); // [rows, block]
    let out_of_bounds = emitter.splat(CDF_BLOCK as f64, places.ty.clone()); // [rows, block]
    let place = emitter.select(&is_it, &places, &out_of_bounds); // [rows, block]
    let place = emitter.reduce(Reduction::Min, &place, &[1]); // [rows]
    let size = emitter.splat(CDF_BLOCK as f64, block.ty.clone()); // [rows]
    let is_found = emitter.compare("LT", &place, &size); // [rows]
    let first = emitter.elementwise("multiply", &[&block, &size]); // [rows]
    let token = emitter.elementwise("add", &[&first, &place]); // [rows]
    let end = emitter.elementwise("add", &[&first, &size]); // [rows]
    let last = last_possible(emitter, probabilities, &end); // [rows]
    emitter.select(&is_found, &token, &last) // [rows]
}

/// Returns the last token before end `[rows]` with a probability above 0, `[rows]`, or 0 if there is none.
fn last_possible(emitter: &mut Emitter, probabilities: &Tensor, end: &Tensor) -> Tensor {
    let tokens = emitter.iota(1, Type::new(probabilities.dims(), DType::I32)); // [rows, vocab]
    let none = emitter.splat(0.0, probabilities.ty.clone()); // [rows, vocab]
    let is_possible = emitter.compare("GT", probabilities, &none); // [rows, vocab]
    let end = emitter.broadcast(end, &[0], tokens.dims()); // [rows, vocab]
    let is_before = emitter.compare("LT", &tokens, &end); // [rows, vocab]
    let is_it = emitter.elementwise("and", &[&is_possible, &is_before]); // [rows, vocab]
    let first = emitter.splat(0.0, tokens.ty.clone()); // [rows, vocab]
    let token = emitter.select(&is_it, &tokens, &first); // [rows, vocab]
    emitter.reduce(Reduction::Max, &token, &[1]) // [rows]
}

/// Returns the sums of x `[rows, n]` up to and including each column, with ⌈log2(n)⌉ additions of a shifted copy.
fn prefix_sums(emitter: &mut Emitter, x: &Tensor) -> Tensor {
    let [rows, size] = [x.dims()[0], x.dims()[1]];
    let mut sums = x.clone();
    let mut shift = 1;
    while shift < size {
        let zeros = emitter.splat(0.0, Type::new([rows, shift], x.dtype())); // [rows, shift]
        let earlier = emitter.slice(&sums, 1, 0..size - shift); // [rows, n - shift]
        let shifted = emitter.concatenate(&[&zeros, &earlier], 1); // [rows, n]
        sums = emitter.elementwise("add", &[&sums, &shifted]); // [rows, n]
        shift *= 2;
    }
    sums // [rows, n]
}

/// Returns the lowest of tokens `[rows, vocab]` whose score equals best `[rows]`, or the size of the vocabulary if
/// there is none.
fn first_of(emitter: &mut Emitter, scores: &Tensor, best: &Tensor, tokens: &Tensor) -> Tensor {
    let bests = emitter.broadcast(best, &[0], scores.dims()); // [rows, vocab]
    let is_best = emitter.compare("EQ", scores, &bests); // [rows, vocab]
    let end = emitter.splat(scores.dims()[1] as f64, tokens.ty.clone()); // [rows, vocab]
    let token = emitter.select(&is_best, tokens, &end); // [rows, vocab]
    emitter.reduce(Reduction::Min, &token, &[1]) // [rows]
}

/// Maps floats to unsigned integers that sort in the same order. Both zeroes map to the same integer; NaN comes last.
fn ordered(emitter: &mut Emitter, x: &Tensor) -> Tensor {
    let zero = emitter.splat(0.0, x.ty.clone());
    let is_zero = emitter.compare("EQ", x, &zero);
    let x = emitter.select(&is_zero, &zero, x);
    let bits = emitter.bitcast(&x, DType::U32);
    let sign = emitter.splat(f64::from(1_u32 << 31), bits.ty.clone());
    let is_negative = emitter.compare("GE", &bits, &sign);
    let flipped = emitter.elementwise("not", &[&bits]);
    let raised = emitter.elementwise("or", &[&bits, &sign]);
    let order = emitter.select(&is_negative, &flipped, &raised);
    let is_number = emitter.compare("EQ", &x, &x);
    let last = emitter.splat(f64::from(u32::MAX), bits.ty.clone());
    emitter.select(&is_number, &order, &last) // as x
}

fn from_ordered(emitter: &mut Emitter, order: &Tensor) -> Tensor {
    let sign = emitter.splat(f64::from(1_u32 << 31), order.ty.clone());
    let is_positive = emitter.compare("GE", order, &sign);
    let lowered = emitter.elementwise("xor", &[order, &sign]);
    let flipped = emitter.elementwise("not", &[order]);
    let bits = emitter.select(&is_positive, &lowered, &flipped);
    emitter.bitcast(&bits, DType::F32) // as order
}
