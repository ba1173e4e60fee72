//! The arithmetic of attention for some tokens of a row and the query heads that share a key head.
//!
//! Door: [`Attend`]. Keys come in chunks of [`CHUNK_KEYS`] that start at multiples of it, whatever the step holds. A score
//! is sixteen partial sums over the head's dimensions, added as a tree; the softmax keeps a running maximum and sum; the
//! values are added key by key. `tile` does the products, for a few queries together where they see the same keys.

use std::ops::Range;

use super::cache::KeysAndValues;
use super::element::KvElement;
use super::tile::{CHUNK_KEYS, ChunkOf, ChunkWeights, Tile, gather, score};
use super::vectors::Vectors;
use super::{AttentionShape, Task};
use crate::activation::{Function, Tanh};
use crate::isa::{Kernel, LANES, Simd};

/// Queries whose weights are computed side by side.
pub(super) const QUERIES_TOGETHER: usize = 4;

/// Attention of one task.
pub(super) struct Attend<'a, 'y, E: KvElement> {
    pub(super) shape: &'a AttentionShape,
    pub(super) q: &'a [f32],
    pub(super) cache: &'a KeysAndValues<E>,
    pub(super) task: Task<'a, 'y>,
}

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

impl<E: KvElement> Kernel for Attend<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let head_dim = self.shape.head_dim;
        let q = self.scaled_queries(); // [queries, head_dim]
        let mut queries = self.queries();
        let mut gathered = Vectors::zeros(queries.len(), head_dim); // [queries, head_dim]
        let mut weights = vec![[0.0; CHUNK_KEYS]; queries.len()]; // [queries, keys of the chunk]
        let mut tiles = Vec::new();
        let mut places = [0; 2 * CHUNK_KEYS];
        let end_key = queries.last().map_or(0, |query| query.end_key);
        let first_chunk = queries.first().map_or(0, |query| query.first_key / CHUNK_KEYS);
        for first_key in (first_chunk * CHUNK_KEYS..end_key).step_by(CHUNK_KEYS) {
            let places = &mut places[..(2 * CHUNK_KEYS).min(end_key - first_key)];
            self.task.row.kv_places(self.shape, self.task.kv_head, first_key, places);
            let (places, next_places) = places.split_at(CHUNK_KEYS.min(places.len()));
            cut_tiles::<S>(&queries, first_key, &mut tiles);
            weights.fill([f32::NEG_INFINITY; CHUNK_KEYS]);
            let keys = ChunkOf::new(&self.cache.k, [places, next_places], head_dim);
            let values = ChunkOf::new(&self.cache.v, [places, next_places], head_dim);
            for tile in &tiles {
                score(simd, tile, &q, &keys, &mut weights);
            }
            let together = queries.chunks_mut(QUERIES_TOGETHER).zip(weights.chunks_mut(QUERIES_TOGETHER));
            for (group, (queries, weights)) in together.enumerate() {
                if let Some(soft_cap) = self.shape.soft_cap {
                    for weights in &mut *weights {
                        cap(simd, soft_cap, weights);
                    }
                }
                let rescales = Query::exponentiate(simd, queries, weights);
                for (idx, (weights, rescale)) in weights.iter_mut().zip(rescales).enumerate() {
                    if E::HAS_SCALES {
                        values.scale_weights(simd, weights);
                    }
                    for line in gathered.of_mut(group * QUERIES_TOGETHER + idx) {
                        simd.store(simd.mul(simd.load(&line.0), simd.splat(rescale)), &mut line.0);
                    }
                }
            }
            for tile in &tiles {
                gather(simd, tile, &weights, &values, &mut gathered);
            }
        }
        self.write(&queries, &gathered);
    }
}

impl<E: KvElement> Attend<'_, '_, E> {
    pub(super) fn queries(&self) -> Vec<Query> {
        let first_position = self.task.row.first_position() + self.task.first_token;
        let num_keys_of_tokens = (0..self.task.out.len()).map(|token| first_position + token + 1);
        num_keys_of_tokens
            .flat_map(|num_keys| std::iter::repeat_n(num_keys, self.shape.group_size()))
            .map(|end_key| Query {
                first_key: self.shape.first_key(end_key),
                end_key,
                max: f32::NEG_INFINITY,
                sum: 0.0,
            })
            .collect()
    }

    fn scaled_queries(&self) -> Vectors {
        let mut scaled = Vectors::zeros(self.num_queries(), self.shape.head_dim);
        for idx in 0..self.num_queries() {
            for (line, q) in scaled.of_mut(idx).iter_mut().zip(self.query(idx).chunks(LANES)) {
                line.0.iter_mut().zip(q).for_each(|(to, value)| *to = value * self.shape.scale);
            }
        }
        scaled
    }

    pub(super) fn num_queries(&self) -> usize {
        self.task.out.len() * self.shape.group_size()
    }

    /// A query's numbers, not scaled.
    #[inline(always)]
    pub(super) fn query(&self, idx: usize) -> &[f32] {
        let (head_dim, group_size) = (self.shape.head_dim, self.shape.group_size());
        let token = self.task.row.first_token + self.task.first_token + idx / group_size;
        let head = self.task.kv_head * group_size + idx % group_size;
        &self.q[token * self.shape.q_width() + head * head_dim..][..head_dim]
    }

    /// Where the output of each query goes.
    pub(super) fn outputs(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.task.out.iter_mut().flat_map(|token| token.chunks_mut(self.shape.head_dim))
    }

    fn write(&mut self, queries: &[Query], gathered: &Vectors) {
        for ((idx, query), out) in queries.iter().enumerate().zip(self.outputs()) {
            for (out, line) in out.chunks_mut(LANES).zip(gathered.of(idx)) {
                out.iter_mut().zip(&line.0).for_each(|(out, value)| *out = value / query.sum);
            }
        }
    }
}

impl Query {
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

/// Cuts queries × keys of the chunk at `first_key`: the keys that neighbouring queries all attend, and those of each alone.
/// The keys of a query come in ascending order.
#[inline(always)]
fn cut_tiles<S: Simd>(queries: &[Query], first_key: usize, tiles: &mut Vec<Tile>) {
    tiles.clear();
    let tile_queries = Tile::max_queries::<S>();
    for (tile_idx, queries) in queries.chunks(tile_queries).enumerate() {
        let first_query = tile_idx * tile_queries;
        let mut shared = 0..CHUNK_KEYS;
        for query in queries {
            let keys = query.keys_of_chunk(first_key);
            shared = shared.start.max(keys.start)..shared.end.min(keys.end);
        }
        let shared = if queries.len() == tile_queries && !shared.is_empty() { shared } else { CHUNK_KEYS..CHUNK_KEYS };
        let alone = |tiles: &mut Vec<Tile>, part: Range<usize>| {
            for (idx, query) in queries.iter().enumerate() {
                let keys = query.keys_of_chunk(first_key);
                let keys = keys.start.max(part.start)..keys.end.min(part.end);
                if !keys.is_empty() {
                    tiles.push(Tile { first_query: first_query + idx, num_queries: 1, keys });
                }
            }
        };
        alone(tiles, 0..shared.start);
        if !shared.is_empty() {
            tiles.push(Tile { first_query, num_queries: tile_queries, keys: shared.clone() });
        }
        alone(tiles, shared.end..CHUNK_KEYS);
    }
}
