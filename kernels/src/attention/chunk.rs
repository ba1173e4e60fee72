//! A chunk of keys, or of values, of one key head, and how it is laid out for products of blocks.
//!
//! Door: [`Chunk`].

use std::ops::Range;

use half::bf16;

use super::cache::{KeysAndValues, Stored};
use super::products::Bf16Pairs;
use super::tile::{CHUNK_KEYS, ChunkWeights};
use crate::isa::{LANES, Simd};
use crate::lines::{BLOCK_COLUMNS, Line, STEP_LINES, TILE_SIZE};

/// Dimensions, or keys, of a step: two values in each word.
pub(super) const STEP_VALUES: usize = 2 * LANES;
/// Steps of a chunk's keys.
pub(super) const CHUNK_STEPS: usize = CHUNK_KEYS / STEP_VALUES;
/// Vectors that are asked for at once.
const VECTORS_AT_ONCE: usize = 8;
/// Words of values that are laid out between.
const ASKING_WORDS: usize = 8;
/// Keys whose scores are one product's columns.
pub(super) const PART_KEYS: usize = BLOCK_COLUMNS;

/// The keys, or values, of a chunk for one key head.
pub(super) struct Chunk<'a, E: Bf16Pairs> {
    stored: &'a Stored<E>,
    /// Of each key.
    places: &'a [usize],
    head_dim: usize,
    /// Factors of the vectors, where they have some.
    scales: ChunkWeights,
}

/// The keys and values of the next chunk, which the caches are asked for a few at a time while this one is multiplied: there are few
/// places for lines that are under way.
pub(super) struct ChunkAhead<'a, E: Bf16Pairs> {
    cache: &'a KeysAndValues<E>,
    places: &'a [usize],
    head_dim: usize,
    num_asked: usize,
}

impl<'a, E: Bf16Pairs> Chunk<'a, E> {
    #[inline(always)]
    pub(super) fn new(stored: &'a Stored<E>, places: &'a [usize], head_dim: usize) -> Self {
        let mut scales = [1.0; CHUNK_KEYS];
        if E::HAS_SCALES {
            for (scale, place) in scales.iter_mut().zip(places) {
                *scale = stored.scales[*place];
            }
        }
        Self { stored, places, head_dim, scales }
    }

    #[inline(always)]
    fn vector(&self, key: usize) -> &'a [E::Stored] {
        &self.stored.numbers[self.places[key] * self.head_dim..][..self.head_dim]
    }

    /// Multiplies numbers with the factors of what they belong to.
    #[inline(always)]
    pub(super) fn scale<S: Simd>(&self, simd: S, numbers: &mut ChunkWeights) {
        for (lanes, scales) in numbers.as_chunks_mut().0.iter_mut().zip(self.scales.as_chunks().0) {
            simd.store(simd.mul(simd.load(lanes), simd.load(scales)), lanes);
        }
    }

    /// Keys as columns: `[parts of keys][steps of dimensions][2 tiles][16 words][16 keys]`. Keys that are missing are any numbers.
    #[inline(always)]
    pub(super) fn lay_out_keys<S: Simd>(&self, simd: S, ahead: &mut ChunkAhead<'_, E>, to: &mut [Line]) {
        let num_steps = self.head_dim.div_ceil(STEP_VALUES);
        for first_key in (0..self.places.len()).step_by(TILE_SIZE) {
            let part = &mut to[first_key / PART_KEYS * num_steps * STEP_LINES..][..num_steps * STEP_LINES];
            let mut vectors: [&[E::Stored]; TILE_SIZE] = [&[]; TILE_SIZE];
            for (idx, vector) in vectors.iter_mut().enumerate() {
                // Past the end the last key is there again.
                *vector = self.vector((first_key + idx).min(self.places.len() - 1));
            }
            ahead.ask(simd);
            for (step, to) in part.chunks_exact_mut(STEP_LINES).enumerate() {
                let to = to[first_key % PART_KEYS..].first_chunk_mut().expect("a tile has so many lines");
                let missing = [E::Stored::default(); STEP_VALUES];
                let mut rows = [&missing; TILE_SIZE];
                if (step + 1) * STEP_VALUES <= self.head_dim {
                    for (row, vector) in rows.iter_mut().zip(&vectors) {
                        *row = vector[step * STEP_VALUES..].first_chunk().expect("a whole step");
                    }
                    E::transpose(simd, &rows, to);
                } else {
                    let padded = vectors.map(|vector| padded(&vector[step * STEP_VALUES..]));
                    rows.iter_mut().zip(&padded).for_each(|(row, padded)| *row = padded);
                    E::transpose(simd, &rows, to);
                }
            }
        }
    }

    /// Values as rows: `[steps of dimensions][steps of keys][2 tiles][16 words][16 dimensions]`, zeros in place of all but `keys`.
    #[inline(always)]
    pub(super) fn lay_out_values<S: Simd>(
        &self,
        simd: S,
        keys: &Range<usize>,
        ahead: &mut ChunkAhead<'_, E>,
        to: &mut [Line],
    ) {
        let num_lines = self.head_dim / LANES;
        for word in 0..keys.end.div_ceil(STEP_VALUES) * LANES {
            if word % ASKING_WORDS == 0 {
                ahead.ask(simd);
            }
            if keys.start > 2 * word || keys.end < 2 * word + 2 {
                self.lay_out_some_values(simd, (word, keys), 0, to);
                continue;
            }
            let (low, _) = self.vector(2 * word).as_chunks();
            let (high, _) = self.vector(2 * word + 1).as_chunks();
            for (line, (low, high)) in low.iter().zip(high).enumerate() {
                E::pairs(simd, low, high, &mut to[line_of_values(word, line)]);
            }
            if !self.head_dim.is_multiple_of(STEP_VALUES) {
                self.lay_out_some_values(simd, (word, keys), num_lines, to);
            }
        }
    }

    /// Sixteen dimensions of a word's values, and those behind them: zeros in place of all but `keys`, and of dimensions behind the last.
    #[inline(always)]
    fn lay_out_some_values<S: Simd>(
        &self,
        simd: S,
        (word, keys): (usize, &Range<usize>),
        first_line: usize,
        to: &mut [Line],
    ) {
        for line in first_line..self.head_dim.div_ceil(STEP_VALUES) * 2 {
            let mut numbers = [[E::Stored::default(); LANES]; 2];
            for (key, numbers) in (2 * word..).zip(&mut numbers) {
                if keys.contains(&key) {
                    *numbers = padded(self.vector(key).get(line * LANES..).unwrap_or_default());
                }
            }
            let [low, high] = &numbers;
            E::pairs(simd, low, high, &mut to[line_of_values(word, line)]);
        }
    }
}

/// Where the sixteen dimensions from 16 · `line` on of a word's values are.
#[inline(always)]
fn line_of_values(word: usize, line: usize) -> usize {
    let (step, tile) = (line / 2, line % 2);
    (step * CHUNK_STEPS + word / LANES) * STEP_LINES + tile * TILE_SIZE + word % LANES
}

impl<'a, E: Bf16Pairs> ChunkAhead<'a, E> {
    pub(super) fn new(cache: &'a KeysAndValues<E>, places: &'a [usize], head_dim: usize) -> Self {
        Self { cache, places, head_dim, num_asked: 0 }
    }

    /// Asks for some more vectors.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self, simd: S) {
        self.ask_for(simd, VECTORS_AT_ONCE);
    }

    /// Asks for all that was not asked for.
    #[inline(always)]
    pub(super) fn ask_for_rest<S: Simd>(&mut self, simd: S) {
        self.ask_for(simd, 2 * CHUNK_KEYS);
    }

    #[inline(always)]
    fn ask_for<S: Simd>(&mut self, simd: S, num_vectors: usize) {
        let num_places = self.places.len();
        let end = (self.num_asked + num_vectors).min(2 * num_places);
        for idx in self.num_asked..end {
            let (stored, key) = if idx < num_places { (&self.cache.k, idx) } else { (&self.cache.v, idx - num_places) };
            let first: *const Line = stored.numbers.as_ptr().wrapping_add(self.places[key] * self.head_dim).cast();
            for line in 0..(self.head_dim * size_of::<E::Stored>()).div_ceil(size_of::<Line>()) {
                simd.prefetch_second_level(first.wrapping_add(line));
            }
        }
        self.num_asked = end;
    }
}

/// Whether all of a chunk's values are finite, as they are laid out.
#[inline(always)]
pub(super) fn are_finite(values: &[Line]) -> bool {
    let mut largest = [0; LANES];
    for line in values {
        for (largest, word) in largest.iter_mut().zip(line.0) {
            *largest = (word & 0x7fff).max(word >> 16 & 0x7fff).max(*largest);
        }
    }
    let mut are_finite = true;
    for largest in largest {
        are_finite &= largest < u32::from(bf16::INFINITY.to_bits());
    }
    are_finite
}

/// Numbers, then zeros.
#[inline(always)]
fn padded<T: Copy + Default, const LEN: usize>(numbers: &[T]) -> [T; LEN] {
    let mut padded = [T::default(); LEN];
    for (to, number) in padded.iter_mut().zip(numbers) {
        *to = *number;
    }
    padded
}
