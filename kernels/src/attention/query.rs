//! One query, with the running maximum and sum of its softmax.
//!
//! Entry point: [`Query`].

use std::ops::Range;

use super::chunk::{CHUNK_KEYS, ChunkWeights};
use crate::activation::{Function, Tanh};
use crate::isa::{LANES, Simd};

/// The maximum number of queries whose weights are computed side by side.
pub(super) const QUERIES_TOGETHER: usize = 4;

/// The query of one token and one head: the keys it attends to, and the state of its softmax.
pub(super) struct Query {
    /// The first key that the query attends to.
    pub(super) first_key: usize,
    /// The end of the keys that the query attends to, exclusive.
    pub(super) end_key: usize,
    /// The factor of distances that are added to scores.
    slope: f32,
    /// The largest score so far.
    max: f32,
    /// The sum of e^(score - max) so far.
    pub(super) sum: f32,
}

impl Query {
    /// Returns the query before it attends to any of `keys`. A `sink` takes part in the softmax like the score of a key
    /// whose value is zero.
    pub(super) fn new(keys: Range<usize>, sink: Option<f32>, slope: f32) -> Self {
        let (max, sum) = sink.map_or((f32::NEG_INFINITY, 0.0), |sink| (sink, 1.0));
        Self { first_key: keys.start, end_key: keys.end, slope, max, sum }
    }

    /// Returns the keys that the query attends to in the chunk at `first_key`, counted from `first_key`.
    #[inline(always)]
    pub(super) fn keys_of_chunk(&self, first_key: usize) -> Range<usize> {
        let in_chunk = |key: usize| key.saturating_sub(first_key).min(CHUNK_KEYS);
        in_chunk(self.first_key)..in_chunk(self.end_key)
    }

    /// Adds the slope times the distance from the query's position to the key's to each score of the chunk at
    /// `first_key`. Minus infinity stays as it is.
    #[inline(always)]
    pub(super) fn add_distances(&self, first_key: usize, weights: &mut ChunkWeights) {
        let position = self.end_key as f32 - 1.0;
        for (idx, score) in weights.iter_mut().enumerate() {
            *score += self.slope * ((first_key + idx) as f32 - position);
        }
    }

    /// Replaces the scores of `queries` in `weights` with e^(score - max). Returns the factors, one per query, that
    /// rescale the weighted values added up so far. A query that attends to none of the keys has scores of minus
    /// infinity and gets weights of zero.
    ///
    /// # Panics
    /// When there are more than [`QUERIES_TOGETHER`] queries.
    #[inline(always)]
    pub(super) fn exponentiate<S: Simd>(
        simd: S,
        queries: &mut [Self],
        weights: &mut [ChunkWeights],
    ) -> [f32; QUERIES_TOGETHER] {
        // Each loop handles all queries, because one query alone would wait for the latency of its own chain of
        // operations.
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
            // Minus infinity minus itself would be NaN.
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

/// Replaces each score with `soft_cap · tanh(score / soft_cap)`. The scores of keys that are not attended stay minus
/// infinity.
#[inline(always)]
pub(super) fn cap<S: Simd>(simd: S, soft_cap: f32, weights: &mut ChunkWeights) {
    let (weights, _) = weights.as_chunks_mut::<LANES>();
    for lanes in weights {
        let scores = simd.load(lanes);
        let capped = simd.mul(Tanh.of(simd, simd.mul(scores, simd.splat(1.0 / soft_cap))), simd.splat(soft_cap));
        // Minus infinity plus `f32::MAX` is minus infinity. For a finite score, the sum is never below the capped
        // score.
        simd.store(simd.min(simd.add(scores, simd.splat(f32::MAX)), capped), lanes);
    }
}
