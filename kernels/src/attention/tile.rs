//! The products of attention, for a few queries and keys at a time in registers.
//!
//! Doors: [`score`] (queries · keys) and [`gather`] (weights · values). How queries and keys are grouped changes how often
//! memory is read, never the order of additions: each score is alone, and each gathered value is one chain over the keys.

use std::ops::Range;

use super::cache::Stored;
use super::element::KvElement;
use super::vectors::{Line, Vectors};
use crate::isa::{LANES, Simd};
use crate::lines::Line as CacheLine;

/// Keys per update of the running softmax: their keys and values stay in the caches while all queries use them.
pub(super) const CHUNK_KEYS: usize = 64;

/// The scores of a query and the keys of a chunk, then their weights.
pub(super) type ChunkWeights = [f32; CHUNK_KEYS];

/// The lines of a key that are whole, and what does not fill one.
type KeyLines<'a, T> = (&'a [[T; LANES]], &'a [T]);

/// Some queries and the keys of a chunk that all of them attend.
pub(super) struct Tile {
    pub(super) first_query: usize,
    /// [`Tile::max_queries`] or 1.
    pub(super) num_queries: usize,
    pub(super) keys: Range<usize>,
}

/// The keys (or values) of a chunk for one key head.
pub(super) struct ChunkOf<'a, E: KvElement> {
    stored: &'a Stored<E>,
    /// Of each key of the chunk.
    places: &'a [usize],
    /// Of the next chunk's, which are asked for meanwhile.
    next_places: &'a [usize],
    head_dim: usize,
    /// Factors of the keys, where they have some.
    scales: [f32; CHUNK_KEYS],
}

impl Tile {
    /// Queries of a tile for which there are registers.
    pub(super) const fn max_queries<S: Simd>() -> usize {
        if S::NUM_SUMS >= 16 { 4 } else { 2 }
    }
}

impl<'a, E: KvElement> ChunkOf<'a, E> {
    #[inline(always)]
    pub(super) fn new(stored: &'a Stored<E>, [places, next_places]: [&'a [usize]; 2], head_dim: usize) -> Self {
        let mut scales = [1.0; CHUNK_KEYS];
        if E::HAS_SCALES {
            for (scale, place) in scales.iter_mut().zip(places) {
                *scale = stored.scales[*place];
            }
        }
        Self { stored, places, next_places, head_dim, scales }
    }

    /// Lines that are whole; the rest of `head_dim` does not fill one.
    fn num_whole(&self) -> usize {
        self.head_dim / LANES
    }

    #[inline(always)]
    fn lines_of(&self, key: usize) -> KeyLines<'a, E::Stored> {
        self.stored.numbers[self.places[key] * self.head_dim..][..self.head_dim].as_chunks()
    }

    /// Asks for what the next chunk has in place of a key of this one.
    #[inline(always)]
    fn prefetch_next<S: Simd>(&self, simd: S, key: usize) {
        if let Some(place) = self.next_places.get(key) {
            let first: *const CacheLine = self.stored.numbers.as_ptr().wrapping_add(place * self.head_dim).cast();
            for line in 0..(self.head_dim * size_of::<E::Stored>()).div_ceil(size_of::<CacheLine>()) {
                simd.prefetch(first.wrapping_add(line));
            }
        }
    }

    /// What does not fill a line, followed by zeros.
    #[inline(always)]
    fn widen_rest<S: Simd>(simd: S, rest: &[E::Stored]) -> S::Vector {
        let mut lanes = [E::Stored::default(); LANES];
        lanes[..rest.len()].copy_from_slice(rest);
        E::widen(simd, &lanes)
    }

    /// Multiplies the weights of a query with the factors of what they belong to.
    #[inline(always)]
    pub(super) fn scale_weights<S: Simd>(&self, simd: S, weights: &mut ChunkWeights) {
        let (weights, _) = weights.as_chunks_mut::<LANES>();
        for (lanes, scales) in weights.iter_mut().zip(self.scales.as_chunks::<LANES>().0) {
            simd.store(simd.mul(simd.load(lanes), simd.load(scales)), lanes);
        }
    }
}

/// Writes the products of `q` `[queries, head_dim]` and `keys` `[keys, head_dim]` to `scores` `[queries, keys]`.
#[inline(always)]
pub(super) fn score<S: Simd, E: KvElement>(
    simd: S,
    tile: &Tile,
    q: &Vectors,
    keys: &ChunkOf<'_, E>,
    scores: &mut [ChunkWeights],
) {
    if keys.num_whole() < q.num_lines() {
        score_by_lines::<S, E, true>(simd, tile, q, keys, scores);
    } else {
        score_by_lines::<S, E, false>(simd, tile, q, keys, scores);
    }
}

/// `HAS_REST` says whether `head_dim` has dimensions that fill no line: registers are not kept for them where it has none.
#[inline(always)]
fn score_by_lines<S: Simd, E: KvElement, const HAS_REST: bool>(
    simd: S,
    tile: &Tile,
    q: &Vectors,
    keys: &ChunkOf<'_, E>,
    scores: &mut [ChunkWeights],
) {
    match tile.num_queries {
        4 => score_tile::<S, E, 4, 4, HAS_REST>(simd, tile, q, keys, scores),
        2 => score_tile::<S, E, 2, 2, HAS_REST>(simd, tile, q, keys, scores),
        _ if S::NUM_SUMS >= 8 => score_tile::<S, E, 1, 8, HAS_REST>(simd, tile, q, keys, scores),
        _ => score_tile::<S, E, 1, 4, HAS_REST>(simd, tile, q, keys, scores),
    }
}

#[inline(always)]
fn score_tile<S: Simd, E: KvElement, const QUERIES: usize, const KEYS: usize, const HAS_REST: bool>(
    simd: S,
    tile: &Tile,
    q: &Vectors,
    keys: &ChunkOf<'_, E>,
    scores: &mut [ChunkWeights],
) {
    let num_whole = keys.num_whole();
    let mut q_lines: [&[Line]; QUERIES] = [&[]; QUERIES];
    for (query, lines) in q_lines.iter_mut().enumerate() {
        *lines = &q.of(tile.first_query + query)[..num_whole + usize::from(HAS_REST)];
    }
    for first_key in tile.keys.clone().step_by(KEYS) {
        let mut key_lines: [KeyLines<'_, E::Stored>; KEYS] = [(&[], &[]); KEYS];
        for (key, lines) in key_lines.iter_mut().enumerate() {
            // Past the end the last key is scored again, and the score dropped.
            let (whole, rest) = keys.lines_of((first_key + key).min(tile.keys.end - 1));
            *lines = (&whole[..num_whole], rest);
            if tile.first_query == 0 {
                keys.prefetch_next(simd, first_key + key);
            }
        }
        let mut sums = [[simd.splat(0.0); KEYS]; QUERIES];
        for line in 0..num_whole {
            for (key, (lines, _)) in key_lines.iter().enumerate() {
                let k = E::widen(simd, &lines[line]);
                for (sums, lines) in sums.iter_mut().zip(&q_lines) {
                    sums[key] = simd.mul_add(simd.load(&lines[line].0), k, sums[key]);
                }
            }
        }
        if HAS_REST {
            for (key, (_, rest)) in key_lines.iter().enumerate() {
                let k = ChunkOf::<E>::widen_rest(simd, rest);
                for (sums, lines) in sums.iter_mut().zip(&q_lines) {
                    sums[key] = simd.mul_add(simd.load(&lines[num_whole].0), k, sums[key]);
                }
            }
        }
        let mut sums_of = [[0.0; KEYS]; QUERIES];
        let sums_of_four = sums_of.as_flattened_mut().as_chunks_mut::<4>().0;
        for (to, vectors) in sums_of_four.iter_mut().zip(sums.as_flattened().as_chunks::<4>().0) {
            *to = simd.sum_each(*vectors);
        }
        if E::HAS_SCALES {
            for sums in &mut sums_of {
                for (sum, scale) in sums.iter_mut().zip(&keys.scales[first_key..]) {
                    *sum *= scale;
                }
            }
        }
        let num_keys = KEYS.min(tile.keys.end - first_key);
        for (scores, sums) in scores[tile.first_query..].iter_mut().zip(&sums_of) {
            scores[first_key..first_key + num_keys].copy_from_slice(&sums[..num_keys]);
        }
    }
}

/// Adds `values` `[keys, head_dim]`, each times its weight of `weights` `[queries, keys]`, to `to` `[queries, head_dim]`.
/// Factors of values are in the weights.
#[inline(always)]
pub(super) fn gather<S: Simd, E: KvElement>(
    simd: S,
    tile: &Tile,
    weights: &[ChunkWeights],
    values: &ChunkOf<'_, E>,
    to: &mut Vectors,
) {
    match tile.num_queries {
        4 => gather_tile::<S, E, 4, 4>(simd, tile, weights, values, to),
        2 => gather_tile::<S, E, 2, 2>(simd, tile, weights, values, to),
        _ if S::NUM_SUMS >= 8 => gather_tile::<S, E, 1, 8>(simd, tile, weights, values, to),
        _ => gather_tile::<S, E, 1, 4>(simd, tile, weights, values, to),
    }
}

/// `LINES` lines at a time, then the rest one by one.
#[inline(always)]
fn gather_tile<S: Simd, E: KvElement, const QUERIES: usize, const LINES: usize>(
    simd: S,
    tile: &Tile,
    weights: &[ChunkWeights],
    values: &ChunkOf<'_, E>,
    to: &mut Vectors,
) {
    let num_whole = values.num_whole();
    let num_together = num_whole / LINES * LINES;
    let mut part = PartOfValues { first_line: 0, values, weights };
    while part.first_line < num_together {
        part.gather::<S, QUERIES, LINES>(simd, tile, to);
        part.first_line += LINES;
    }
    while part.first_line < num_whole {
        part.gather::<S, QUERIES, 1>(simd, tile, to);
        part.first_line += 1;
    }
    if num_whole < to.num_lines() {
        part.gather_rest(simd, tile, to);
    }
}

/// The values from one line on.
struct PartOfValues<'a, E: KvElement> {
    first_line: usize,
    values: &'a ChunkOf<'a, E>,
    weights: &'a [ChunkWeights],
}

impl<E: KvElement> PartOfValues<'_, E> {
    #[inline(always)]
    fn gather<S: Simd, const QUERIES: usize, const LINES: usize>(&self, simd: S, tile: &Tile, to: &mut Vectors) {
        let lines = self.first_line..self.first_line + LINES;
        let mut sums = [[simd.splat(0.0); LINES]; QUERIES];
        for (query, sums) in sums.iter_mut().enumerate() {
            for (sum, line) in sums.iter_mut().zip(&to.of(tile.first_query + query)[lines.clone()]) {
                *sum = simd.load(&line.0);
            }
        }
        let weights_of: &[ChunkWeights; QUERIES] =
            self.weights[tile.first_query..].first_chunk().expect("weights of all queries");
        let is_first = tile.first_query == 0 && self.first_line == 0;
        // The bound is said again so that it is not looked at for each query.
        for key in tile.keys.start..tile.keys.end.min(CHUNK_KEYS) {
            if is_first {
                self.values.prefetch_next(simd, key);
            }
            let values = self.values.lines_of(key).0[lines.clone()].first_chunk::<LINES>().expect("so many lines");
            let mut weights = [simd.splat(0.0); QUERIES];
            for (weight, of_query) in weights.iter_mut().zip(weights_of) {
                *weight = simd.splat(of_query[key]);
            }
            for (line, value) in values.iter().enumerate() {
                let value = E::widen(simd, value);
                for (sums, weight) in sums.iter_mut().zip(&weights) {
                    sums[line] = simd.mul_add(*weight, value, sums[line]);
                }
            }
        }
        for (query, sums) in sums.into_iter().enumerate() {
            for (sum, line) in sums.into_iter().zip(&mut to.of_mut(tile.first_query + query)[lines.clone()]) {
                simd.store(sum, &mut line.0);
            }
        }
    }

    /// The dimensions that do not fill a line.
    #[inline(always)]
    fn gather_rest<S: Simd>(&self, simd: S, tile: &Tile, to: &mut Vectors) {
        for query in tile.first_query..tile.first_query + tile.num_queries {
            let line = &mut to.of_mut(query)[self.first_line];
            let mut sum = simd.load(&line.0);
            for key in tile.keys.clone() {
                let value = ChunkOf::<E>::widen_rest(simd, self.values.lines_of(key).1);
                sum = simd.mul_add(simd.splat(self.weights[query][key]), value, sum);
            }
            simd.store(sum, &mut line.0);
        }
    }
}
