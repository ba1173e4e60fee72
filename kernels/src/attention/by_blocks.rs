//! Attention of one task by products of blocks of bf16, for caches whose numbers are exact in it.
//!
//! Door: [`AttendByBlocks`]. It goes as `attend` does, chunk of keys by chunk; queries and weights are rounded to bf16 for their
//! products, as x is for linear layers. `chunk` lays keys and values out, `products` multiplies them, by tiles where the CPU has some.
//! A query's bits do not depend on the others of its task: a product sums each row alone, and what a query does not attend counts as
//! zero.

use std::cell::Cell;
use std::ops::Range;

use super::attend::{Attend, QUERIES_TOGETHER, Query, cap};
use super::chunk::{CHUNK_STEPS, Chunk, ChunkAhead, PART_KEYS, STEP_VALUES, are_finite};
use super::products::{Bf16Pairs, Products};
use super::tile::{CHUNK_KEYS, ChunkWeights};
use crate::isa::{Kernel, Simd};
use crate::lines::{BLOCK_COLUMNS, BLOCK_ROWS, Block, Line, STEP_LINES};

/// Products that give the scores of a chunk.
const CHUNK_PARTS: usize = CHUNK_KEYS / PART_KEYS;

/// Attention of one task.
pub(super) struct AttendByBlocks<'a, 'y, 't, E: Bf16Pairs> {
    pub(super) attend: Attend<'a, 'y, E>,
    pub(super) products: Products<'t>,
}

thread_local! {
    /// Kept: to get it from the system takes as long as a short task.
    static MEMORY: Cell<Memory> = Cell::default();
}

/// What a task computes with.
#[derive(Default)]
struct Memory {
    /// Scaled queries, rounded: `[blocks][steps of dimensions][rows]`.
    q: Vec<Line>,
    /// Of a block: `[parts of keys]`.
    scores: Vec<Block<f32>>,
    /// Of a block, rounded: `[steps of keys][rows]`.
    weights: Vec<Line>,
    /// Of a chunk.
    keys: Vec<Line>,
    values: Vec<Line>,
    /// `[blocks][steps of dimensions]`
    gathered: Vec<Block<f32>>,
}

impl<E: Bf16Pairs> Kernel for AttendByBlocks<'_, '_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut queries = self.attend.queries();
        let (num_steps, block_rows) = (self.num_steps(), self.products.block_rows);
        let is_one_token = self.attend.task.out.len() == 1;
        let mut memory = self.memory(queries.len());
        self.round_queries(simd, &mut memory.q);
        let mut places = [0; 2 * CHUNK_KEYS];
        let end_key = queries.last().map_or(0, |query| query.end_key);
        let first_chunk = queries.first().map_or(0, |query| query.first_key / CHUNK_KEYS);
        for first_key in (first_chunk * CHUNK_KEYS..end_key).step_by(CHUNK_KEYS) {
            let Attend { shape, cache, task, .. } = &self.attend;
            let places = &mut places[..(2 * CHUNK_KEYS).min(end_key - first_key)];
            task.row.kv_places(shape, task.kv_head, first_key, places);
            let (places, next_places) = places.split_at(CHUNK_KEYS.min(places.len()));
            let keys = Chunk::new(&cache.k, places, shape.head_dim);
            let values = Chunk::new(&cache.v, places, shape.head_dim);
            let mut ahead = ChunkAhead::new(cache, next_places, shape.head_dim);
            keys.lay_out_keys(simd, &mut ahead, &mut memory.keys);
            // All queries of a single token attend the same keys.
            let some_keys = if is_one_token { queries[0].keys_of_chunk(first_key) } else { 0..places.len() };
            values.lay_out_values(simd, &some_keys, &mut ahead, &mut memory.values);
            let has_to_gather_each = !is_one_token && !E::HAS_SCALES && !are_finite(&memory.values);
            for (block, queries) in queries.chunks_mut(block_rows).enumerate() {
                let attended = attended(queries, first_key);
                if attended.is_empty() {
                    continue;
                }
                self.score(simd, block, attended.end, &mut memory);
                ahead.ask(simd);
                let gathered = &mut memory.gathered[block * num_steps..][..num_steps];
                for (group, queries) in queries.chunks_mut(QUERIES_TOGETHER).enumerate() {
                    ahead.ask(simd);
                    let first_row = group * QUERIES_TOGETHER;
                    let mut weights = [[0.0; CHUNK_KEYS]; QUERIES_TOGETHER];
                    for (idx, weights) in weights.iter_mut().enumerate().take(queries.len()) {
                        *weights = scores_of(&memory.scores, first_row + idx);
                    }
                    let weights = &mut weights[..queries.len()];
                    let rescales = self.weigh(simd, (queries, first_key), [&keys, &values], weights);
                    for (row, (weights, rescale)) in (first_row..).zip(weights.iter().zip(rescales)) {
                        if rescale != 1.0 {
                            for block in &mut *gathered {
                                scale_row(simd, &mut block.0[row], rescale);
                            }
                        }
                        for (step, weights) in weights.as_chunks().0.iter().enumerate() {
                            simd.round_to_bf16(weights, &mut memory.weights[step * block_rows + row]);
                        }
                    }
                }
                if has_to_gather_each {
                    self.gather_each(simd, &memory.weights, (&values, first_key), (queries, gathered));
                } else {
                    self.gather(simd, &memory.weights, (&memory.values, attended.end), gathered);
                }
            }
            ahead.ask_for_rest(simd);
        }
        for (idx, (query, out)) in queries.iter().zip(self.attend.outputs()).enumerate() {
            let gathered = &memory.gathered[idx / block_rows * num_steps..][..num_steps];
            for (out, block) in out.chunks_mut(STEP_VALUES).zip(gathered) {
                for (out, value) in out.iter_mut().zip(&block.0[idx % block_rows]) {
                    *out = value / query.sum;
                }
            }
        }
        MEMORY.set(memory);
    }
}

impl<E: Bf16Pairs> AttendByBlocks<'_, '_, '_, E> {
    /// Steps of dimensions.
    fn num_steps(&self) -> usize {
        self.attend.shape.head_dim.div_ceil(STEP_VALUES)
    }

    /// Memory of this thread: nothing is gathered yet, all else is what another task has left.
    fn memory(&self, num_queries: usize) -> Memory {
        let (num_steps, block_rows) = (self.num_steps(), self.products.block_rows);
        let num_blocks = num_queries.div_ceil(block_rows);
        let (no_line, no_block) = (Line([0; 16]), Block([[0.0; BLOCK_COLUMNS]; BLOCK_ROWS]));
        let mut memory = MEMORY.take();
        memory.q.resize(num_blocks * num_steps * block_rows, no_line);
        memory.scores.resize(CHUNK_PARTS, no_block.clone());
        memory.weights.resize(CHUNK_STEPS * block_rows, no_line);
        memory.keys.resize(CHUNK_PARTS * num_steps * STEP_LINES, no_line);
        memory.values.resize(num_steps * CHUNK_STEPS * STEP_LINES, no_line);
        memory.gathered.resize(num_blocks * num_steps, no_block);
        for block in &mut memory.gathered {
            block.0[..block_rows].fill([0.0; BLOCK_COLUMNS]);
        }
        memory
    }

    /// Scaled queries, rounded: `[blocks][steps of dimensions][rows]`.
    #[inline(always)]
    fn round_queries<S: Simd>(&self, simd: S, to: &mut [Line]) {
        let (num_steps, block_rows) = (self.num_steps(), self.products.block_rows);
        for idx in 0..self.attend.num_queries() {
            let lines = &mut to[idx / block_rows * num_steps * block_rows + idx % block_rows..];
            for (line, q) in lines.iter_mut().step_by(block_rows).zip(self.attend.query(idx).chunks(STEP_VALUES)) {
                let mut values = [0.0; STEP_VALUES];
                for (value, q) in values.iter_mut().zip(q) {
                    *value = q * self.attend.shape.scale;
                }
                simd.round_to_bf16(&values, line);
            }
        }
    }

    /// Multiplies the queries of a block with the first keys of a chunk.
    #[inline(always)]
    fn score<S: Simd>(&self, simd: S, block: usize, num_keys: usize, memory: &mut Memory) {
        let (num_steps, block_rows) = (self.num_steps(), self.products.block_rows);
        let q = &memory.q[block * num_steps * block_rows..][..num_steps * block_rows];
        let parts = memory.keys.chunks_exact(num_steps * STEP_LINES).zip(&mut memory.scores);
        for (keys, scores) in parts.take(num_keys.div_ceil(PART_KEYS)) {
            scores.0[..block_rows].fill([0.0; BLOCK_COLUMNS]);
            self.products.add(simd, q, keys, scores);
        }
    }

    /// Makes weights of the scores of some queries, zeros of keys that they do not attend. Answers by what that which was gathered before
    /// shrinks.
    #[inline(always)]
    fn weigh<S: Simd>(
        &self,
        simd: S,
        (queries, first_key): (&mut [Query], usize),
        [keys, values]: [&Chunk<'_, E>; 2],
        weights: &mut [ChunkWeights],
    ) -> [f32; QUERIES_TOGETHER] {
        for (query, weights) in queries.iter().zip(&mut *weights) {
            if E::HAS_SCALES {
                keys.scale(simd, weights);
            }
            fill_outside(weights, &query.keys_of_chunk(first_key), f32::NEG_INFINITY);
            if let Some(soft_cap) = self.attend.shape.soft_cap {
                cap(simd, soft_cap, weights);
            }
        }
        let rescales = Query::exponentiate(simd, queries, weights);
        if E::HAS_SCALES {
            for (query, weights) in queries.iter().zip(weights) {
                values.scale(simd, weights);
                // A factor may be no number.
                fill_outside(weights, &query.keys_of_chunk(first_key), 0.0);
            }
        }
        rescales
    }

    /// Adds weights times the first values of a chunk to what was gathered.
    #[inline(always)]
    fn gather<S: Simd>(
        &self,
        simd: S,
        weights: &[Line],
        (values, num_keys): (&[Line], usize),
        gathered: &mut [Block<f32>],
    ) {
        let num_steps = num_keys.div_ceil(STEP_VALUES);
        let weights = &weights[..num_steps * self.products.block_rows];
        for (values, gathered) in values.chunks_exact(CHUNK_STEPS * STEP_LINES).zip(gathered) {
            self.products.add(simd, weights, &values[..num_steps * STEP_LINES], gathered);
        }
    }

    /// The same for each query alone: what is no number is no number times zero either.
    #[inline(always)]
    fn gather_each<S: Simd>(
        &self,
        simd: S,
        weights: &[Line],
        (values, first_key): (&Chunk<'_, E>, usize),
        (queries, gathered): (&[Query], &mut [Block<f32>]),
    ) {
        let mut right = vec![Line([0; 16]); gathered.len() * CHUNK_STEPS * STEP_LINES];
        let before = gathered.to_vec();
        for (row, query) in queries.iter().enumerate() {
            let keys = query.keys_of_chunk(first_key);
            if keys.is_empty() {
                continue;
            }
            values.lay_out_values(simd, &keys, &mut ChunkAhead::new(self.attend.cache, &[], 0), &mut right);
            let mut after = before.clone();
            self.gather(simd, weights, (&right, keys.end), &mut after);
            for (to, after) in gathered.iter_mut().zip(&after) {
                to.0[row] = after.0[row];
            }
        }
    }
}

/// Keys of the chunk at `first_key` that queries, in the order of their tokens, attend: from the first to the last.
#[inline(always)]
fn attended(queries: &[Query], first_key: usize) -> Range<usize> {
    match queries {
        [first, .., last] => first.keys_of_chunk(first_key).start..last.keys_of_chunk(first_key).end,
        [query] => query.keys_of_chunk(first_key),
        [] => 0..0,
    }
}

#[inline(always)]
fn scores_of(scores: &[Block<f32>], row: usize) -> ChunkWeights {
    let mut of_keys = [0.0; CHUNK_KEYS];
    for (to, part) in of_keys.as_chunks_mut().0.iter_mut().zip(scores) {
        *to = part.0[row];
    }
    of_keys
}

#[inline(always)]
fn fill_outside(weights: &mut ChunkWeights, keys: &Range<usize>, value: f32) {
    if keys.start > 0 {
        weights[..keys.start].fill(value);
    }
    if keys.end < CHUNK_KEYS {
        weights[keys.end..].fill(value);
    }
}

#[inline(always)]
fn scale_row<S: Simd>(simd: S, row: &mut [f32; BLOCK_COLUMNS], factor: f32) {
    for lanes in row.as_chunks_mut().0 {
        simd.store(simd.mul(simd.load(lanes), simd.splat(factor)), lanes);
    }
}
