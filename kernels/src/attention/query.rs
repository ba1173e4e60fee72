//! One query and the state of its softmax, which keeps a running maximum and sum.
//!
//! Door: [`Query`].

use std::ops::Range;

use super::chunk::{CHUNK_KEYS, ChunkWeights};
use crate::activation::{Function, Tanh};
use crate::isa::{LANES, Simd};

/// Queries whose weights are computed side by side.
pub(super) const QUERIES_TOGETHER: usize = 4;

/// One token's query of one head, and the state of its softmax.
pub(super) struct Query {
    /// Keys it attends.
    pub(super) first_key: usize,
    pub(super) end_key: usize,
    /// Largest score so far.
    max: f32,
    /// Sum of e^(score - max) so far.
    pub(super) sum: f32,
}

impl Query {
    pub(super) fn new(keys: Range<usize>) -> Self {
        Self { first_key: keys.start, end_key: keys.end, max: f32::NEG_INFINITY, sum: 0.0 }
    }

    /// The keys it attends of the chunk at `first_key`, counted from there.
    #[inline(always)]
    pub(super) fn keys_of_chunk(&self, first_key: usize) -> Range<usize> {
        let in_chunk = |key: usize| key.saturating_sub(first_key).min(CHUNK_KEYS);
        in_chunk(self.first_key)..in_chunk(self.end_key)
    }

    /// Replaces the scores of some queries by e^(score - max), and answers by which factors what was gathered before shrinks. A query
    /// that attends none of the keys has scores of minus infinity, and weights of zero.
    ///
    /// # Panics
    /// When they are more than [`QUERIES_TOGETHER`].
    #[inline(always)]
    pub(super) fn exponentiate<S: Simd>(
        simd: S,
        queries: &mut [Self],
        weights: &mut [ChunkWeights],
    ) -> [f32; QUERIES_TOGETHER] {
        // In steps that the queries take side by side, because a query alone waits for its own sums and exponentials.
        let mut maxima = [f32::NEG_INFINITY; QUERIES_TOGETHER];
        for (max, (query, weights)) in maxima.iter_mut().zip(queries.iter().zip(weights.iter())) {
            let mut largest = simd.splat(f32::NEG_INFINITY);
            for lanes in weights.as_chunks().0 {
                largest = simd.max(simd.load(lanes), largest);
            }
            *max = query.max.max(simd.max_lane(largest));
        }
        let mut sums = [simd.splat(0.0); QUERIES_TOGETHER];
        for ((max, sums), weights) in maxima.iter().zip(&mut sums).zip(weights) {
            let subtracted = simd.splat(if *max == f32::NEG_INFINITY { 0.0 } else { *max });
            for lanes in weights.as_chunks_mut().0 {
                let exponentials = simd.exp(simd.sub(simd.load(lanes), subtracted));
                *sums = simd.add(*sums, exponentials);
                simd.store(exponentials, lanes);
            }
        }
        let mut rescales = [0.0; LANES];
        for (rescale, (query, max)) in rescales.iter_mut().zip(queries.iter().zip(maxima)) {
            // Minus infinity less itself is no number.
            *rescale = if query.max == max { 0.0 } else { query.max - max };
        }
        simd.store(simd.exp(simd.load(&rescales)), &mut rescales);
        let sums = simd.sum_each(sums);
        for (idx, query) in queries.iter_mut().enumerate() {
            query.max = maxima[idx];
            query.sum = query.sum * rescales[idx] + sums[idx];
        }
        let (rescales, _) = rescales.split_first_chunk().expect("there are more lanes");
        *rescales
    }
}

/// Bounds scores; those of keys that are not attended stay minus infinity.
#[inline(always)]
pub(super) fn cap<S: Simd>(simd: S, soft_cap: f32, weights: &mut ChunkWeights) {
    let (weights, _) = weights.as_chunks_mut::<LANES>();
    for lanes in weights {
        let scores = simd.load(lanes);
        let capped = simd.mul(Tanh.of(simd, simd.mul(scores, simd.splat(1.0 / soft_cap))), simd.splat(soft_cap));
        // Added to minus infinity, a number larger than any score leaves it what it is.
        simd.store(simd.min(simd.add(scores, simd.splat(f32::MAX)), capped), lanes);
    }
}
