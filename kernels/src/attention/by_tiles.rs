//! Attention of one task by products of tiles, where keys and values are bf16.
//!
//! Door: [`AttendByTiles`]. It goes as `attend` does, chunk of keys by chunk; queries and weights are rounded to bf16 for their products, as
//! x is for linear layers. A query's bits do not depend on the others of its task: a product sums each row alone, and what a query
//! does not attend counts as zero.

use std::ops::Range;

use half::bf16;

use super::attend::{Attend, Query, cap};
use super::cache::Stored;
use super::tile::{CHUNK_KEYS, ChunkWeights};
use crate::isa::{Kernel, LANES, Simd, Tiles};
use crate::lines::{Ahead, BLOCK_COLUMNS, BLOCK_ROWS, Block, Line, STEP_LINES, TILE_SIZE};

/// Dimensions, or keys, of a step: two values in each word.
const STEP_VALUES: usize = 32;
/// Keys whose scores are one product's columns.
const PART_KEYS: usize = BLOCK_COLUMNS;
/// Steps of a chunk's keys.
const CHUNK_STEPS: usize = CHUNK_KEYS / STEP_VALUES;

/// Attention of one task.
pub(super) struct AttendByTiles<'a, 'y, 't> {
    pub(super) attend: Attend<'a, 'y, bf16>,
    pub(super) tiles: &'t Tiles,
    /// Rows of a block of queries, for which the tiles are set up.
    pub(super) block_rows: usize,
}

/// The keys, or values, of a chunk for one key head.
#[derive(Clone, Copy)]
struct Chunk<'a> {
    stored: &'a Stored<bf16>,
    places: &'a [usize],
    /// Of the next chunk, whose vectors are asked for while those of this one are used.
    next_places: &'a [usize],
    head_dim: usize,
}

/// What a task computes with.
struct Memory {
    /// Scaled queries, rounded: `[blocks][steps][rows]`.
    q: Vec<Line>,
    /// `[queries, keys of the chunk]`
    weights: Vec<ChunkWeights>,
    /// Weights of a block, rounded: `[steps][rows]`.
    left: Vec<Line>,
    /// Keys, then values, of a chunk.
    right: Vec<Line>,
    /// `[blocks][steps of dimensions]`
    gathered: Vec<Block<f32>>,
}

impl Kernel for AttendByTiles<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut queries = self.attend.queries();
        let num_steps = self.attend.shape.head_dim.div_ceil(STEP_VALUES);
        let num_blocks = queries.len().div_ceil(self.block_rows);
        let zero = Block([[0.0; BLOCK_COLUMNS]; BLOCK_ROWS]);
        let mut memory = Memory {
            q: self.attend.queries_in_blocks(simd, num_steps, self.block_rows),
            weights: vec![[0.0; CHUNK_KEYS]; queries.len()],
            left: vec![Line([0; 16]); CHUNK_STEPS * self.block_rows],
            right: vec![Line([0; 16]); num_steps * CHUNK_STEPS * STEP_LINES],
            gathered: vec![zero; num_blocks * num_steps],
        };
        let mut places = [0; 2 * CHUNK_KEYS];
        let end_key = queries.last().map_or(0, |query| query.end_key);
        let first_chunk = queries.first().map_or(0, |query| query.first_key / CHUNK_KEYS);
        for first_key in (first_chunk * CHUNK_KEYS..end_key).step_by(CHUNK_KEYS) {
            let Attend { shape, cache, task, .. } = &self.attend;
            let places = &mut places[..(2 * CHUNK_KEYS).min(end_key - first_key)];
            task.row.kv_places(shape, task.kv_head, first_key, places);
            let (places, next_places) = places.split_at(CHUNK_KEYS.min(places.len()));
            let chunk = Chunk { stored: &cache.k, places, next_places, head_dim: shape.head_dim };
            chunk.transpose(simd, num_steps, &mut memory.right);
            self.score(num_steps, places.len(), &mut memory);
            let values = Chunk { stored: &cache.v, ..chunk };
            let are_finite = values.pair(simd, 0..places.len(), num_steps, &mut memory.right);
            for block in 0..num_blocks {
                let first_query = block * self.block_rows;
                let last_query = (first_query + self.block_rows).min(queries.len());
                let queries = &mut queries[first_query..last_query];
                self.weigh(simd, (block, first_key), queries, &mut memory);
                let gathered = &mut memory.gathered[block * num_steps..][..num_steps];
                if are_finite {
                    gather(self.tiles, &memory.left, &memory.right, gathered);
                } else {
                    let products = (self.tiles, &memory.left[..], &mut memory.right[..]);
                    gather_each(simd, products, (&values, first_key), queries, gathered);
                }
            }
        }
        let block_rows = self.block_rows;
        for (idx, (query, out)) in queries.iter().zip(self.attend.outputs()).enumerate() {
            let gathered = &memory.gathered[idx / block_rows * num_steps..][..num_steps];
            for (out, block) in out.chunks_mut(STEP_VALUES).zip(gathered) {
                for (out, value) in out.iter_mut().zip(&block.0[idx % block_rows]) {
                    *out = value / query.sum;
                }
            }
        }
    }
}

impl AttendByTiles<'_, '_, '_> {
    /// Queries times the keys of a chunk, which are on the right.
    #[inline(always)]
    fn score(&self, num_steps: usize, num_keys: usize, memory: &mut Memory) {
        let mut scores = Block([[0.0; BLOCK_COLUMNS]; BLOCK_ROWS]);
        let blocks = memory.q.chunks_exact(num_steps * self.block_rows);
        for (q, weights) in blocks.zip(memory.weights.chunks_mut(self.block_rows)) {
            for part in 0..num_keys.div_ceil(PART_KEYS) {
                let right = &memory.right[part * num_steps * STEP_LINES..][..num_steps * STEP_LINES];
                scores.0[..self.block_rows].fill([0.0; BLOCK_COLUMNS]);
                self.tiles.add_bf16_product(q, right, Ahead::nothing(q), &mut scores);
                for (weights, scores) in weights.iter_mut().zip(&scores.0) {
                    weights[part * PART_KEYS..][..PART_KEYS].copy_from_slice(scores);
                }
            }
        }
    }

    /// Makes weights of a block's scores, and rescales what was gathered before.
    #[inline(always)]
    fn weigh<S: Simd>(&self, simd: S, (block, first_key): (usize, usize), queries: &mut [Query], memory: &mut Memory) {
        let num_steps = memory.gathered.len() / memory.weights.len().div_ceil(self.block_rows);
        let gathered = &mut memory.gathered[block * num_steps..][..num_steps];
        let weights = &mut memory.weights[block * self.block_rows..];
        for (row, (query, weights)) in queries.iter_mut().zip(weights).enumerate() {
            let keys = query.keys_of_chunk(first_key);
            if keys.is_empty() {
                weights.fill(0.0);
            } else {
                weights[..keys.start].fill(f32::NEG_INFINITY);
                weights[keys.end..].fill(f32::NEG_INFINITY);
                if let Some(soft_cap) = self.attend.shape.soft_cap {
                    cap(simd, soft_cap, weights);
                }
                let rescale = query.exponentiate(simd, weights);
                if rescale != 1.0 {
                    for block in &mut *gathered {
                        scale_row(simd, &mut block.0[row], rescale);
                    }
                }
            }
            for (step, weights) in weights.as_chunks().0.iter().enumerate() {
                simd.round_to_bf16(weights, &mut memory.left[step * self.block_rows + row]);
            }
        }
    }
}

impl Attend<'_, '_, bf16> {
    /// Scaled queries, rounded: `[blocks][steps][rows]`.
    #[inline(always)]
    fn queries_in_blocks<S: Simd>(&self, simd: S, num_steps: usize, block_rows: usize) -> Vec<Line> {
        let scaled = self.scaled_queries(); // [queries, head_dim]
        let num_queries = self.task.out.len() * self.shape.group_size();
        let mut lines = vec![Line([0; 16]); num_queries.div_ceil(block_rows) * num_steps * block_rows];
        for (block, lines) in lines.chunks_exact_mut(num_steps * block_rows).enumerate() {
            for row in 0..block_rows.min(num_queries - block * block_rows) {
                let halves = scaled.of(block * block_rows + row).chunks(STEP_VALUES / LANES);
                for (line, halves) in lines.iter_mut().skip(row).step_by(block_rows).zip(halves) {
                    let mut values = [0.0; STEP_VALUES];
                    values.as_chunks_mut().0.iter_mut().zip(halves).for_each(|(to, half)| *to = half.0);
                    simd.round_to_bf16(&values, line);
                }
            }
        }
        lines
    }
}

impl<'a> Chunk<'a> {
    #[inline(always)]
    fn vector(&self, key: usize) -> &'a [u16] {
        &self.stored.numbers[self.places[key] * self.head_dim..][..self.head_dim]
    }

    /// Asks for a step of a vector of the next chunk.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, simd: S, key: usize, step: usize) {
        if let Some(place) = self.next_places.get(key) {
            simd.prefetch(self.stored.numbers.as_ptr().wrapping_add(place * self.head_dim + step * STEP_VALUES).cast());
        }
    }

    /// Of one of `keys`, or nothing.
    #[inline(always)]
    fn vector_of(&self, key: usize, keys: &Range<usize>) -> &'a [u16] {
        if keys.contains(&key) { self.vector(key) } else { &[] }
    }

    /// Keys as columns: `[parts of 32 keys][steps][2 tiles][16 pairs of dimensions][16 keys]`. Keys that are missing are any numbers.
    #[inline(always)]
    fn transpose<S: Simd>(&self, simd: S, num_steps: usize, to: &mut [Line]) {
        let num_tiles = self.places.len().div_ceil(TILE_SIZE);
        for tile in 0..num_tiles {
            let part = &mut to[tile / 2 * num_steps * STEP_LINES..][..num_steps * STEP_LINES];
            for (step, to) in part.chunks_exact_mut(STEP_LINES).enumerate() {
                let mut rows = [[0; LANES]; LANES];
                for (key, row) in (tile * TILE_SIZE..self.places.len()).zip(&mut rows) {
                    self.prefetch(simd, key, step);
                    *row = words(self.vector(key), step);
                }
                let to = &mut to[tile % 2 * TILE_SIZE..][..TILE_SIZE];
                simd.transpose(&rows, to.first_chunk_mut().expect("a tile has so many lines"));
            }
        }
    }

    /// The values of `keys` in pairs, zeros in place of others: `[steps of dimensions][steps of keys][2 tiles][16 pairs of keys][16 dimensions]`.
    /// Answers whether all are finite.
    #[inline(always)]
    fn pair<S: Simd>(&self, simd: S, keys: Range<usize>, num_steps: usize, to: &mut [Line]) -> bool {
        let mut largest = [0; LANES];
        for pair in 0..CHUNK_KEYS / 2 {
            let (step, line) = (pair / TILE_SIZE, pair % TILE_SIZE);
            let (first, second) = (self.vector_of(2 * pair, &keys), self.vector_of(2 * pair + 1, &keys));
            for dims in 0..num_steps {
                self.prefetch(simd, 2 * pair, dims);
                self.prefetch(simd, 2 * pair + 1, dims);
                let (first, second) = (halves(first, dims), halves(second, dims));
                let to = &mut to[(dims * CHUNK_STEPS + step) * STEP_LINES..][..STEP_LINES];
                for tile in 0..STEP_LINES / TILE_SIZE {
                    let to = &mut to[tile * TILE_SIZE + line].0;
                    for (idx, (word, largest)) in to.iter_mut().zip(&mut largest).enumerate() {
                        let (first, second) = (first[tile * LANES + idx], second[tile * LANES + idx]);
                        *word = u32::from(second) << 16 | u32::from(first);
                        *largest = (first & 0x7fff).max(second & 0x7fff).max(*largest);
                    }
                }
            }
        }
        largest.iter().all(|largest| *largest < bf16::INFINITY.to_bits())
    }
}

/// The values of a step, two in a word; zeros behind the last.
#[inline(always)]
fn words(vector: &[u16], step: usize) -> [u32; LANES] {
    let mut words = [0; LANES];
    for (word, pair) in words.iter_mut().zip(halves(vector, step).as_chunks::<2>().0) {
        *word = u32::from(pair[1]) << 16 | u32::from(pair[0]);
    }
    words
}

/// The values of a step; zeros behind the last.
#[inline(always)]
fn halves(vector: &[u16], step: usize) -> [u16; STEP_VALUES] {
    let vector = &vector[(step * STEP_VALUES).min(vector.len())..];
    if let Some(halves) = vector.first_chunk() {
        return *halves;
    }
    let mut halves = [0; STEP_VALUES];
    halves[..vector.len()].copy_from_slice(vector);
    halves
}

/// Gathers for each query what it attends, alone: what is no number is no number times zero either. All values are on the right, before
/// and after.
#[inline(always)]
fn gather_each<S: Simd>(
    simd: S,
    (tiles, left, right): (&Tiles, &[Line], &mut [Line]),
    (values, first_key): (&Chunk<'_>, usize),
    queries: &[Query],
    gathered: &mut [Block<f32>],
) {
    let before = gathered.to_vec();
    for (row, query) in queries.iter().enumerate() {
        values.pair(simd, query.keys_of_chunk(first_key), before.len(), right);
        let mut after = before.clone();
        gather(tiles, left, right, &mut after);
        for (to, after) in gathered.iter_mut().zip(&after) {
            to.0[row] = after.0[row];
        }
    }
    values.pair(simd, 0..values.places.len(), before.len(), right);
}

/// Adds weights `[steps of keys][rows]` times values to what was gathered, `[steps of dimensions]`.
#[inline(always)]
fn gather(tiles: &Tiles, left: &[Line], right: &[Line], gathered: &mut [Block<f32>]) {
    for (right, gathered) in right.chunks_exact(CHUNK_STEPS * STEP_LINES).zip(gathered) {
        tiles.add_bf16_product(left, right, Ahead::nothing(left), gathered);
    }
}

#[inline(always)]
fn scale_row<S: Simd>(simd: S, row: &mut [f32; BLOCK_COLUMNS], factor: f32) {
    for lanes in row.as_chunks_mut().0 {
        simd.store(simd.mul(simd.load(lanes), simd.splat(factor)), lanes);
    }
}
