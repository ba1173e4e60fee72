//! The arithmetic of attention for consecutive tokens of a row and the query heads that share a key head.
//!
//! Entry point: [`Attend`]. Keys are handled in chunks of [`CHUNK_KEYS`] that start at multiples of [`CHUNK_KEYS`],
//! whatever the step contains. The queries are multiplied with the keys of a chunk, the softmax turns the scores into
//! weights, and the values, times their weights, are added up. `products` multiplies blocks of queries with keys and
//! values in the layout of the cache. Tiles need another layout, to which keys and values are copied first; so do
//! vectors if many queries share int8 keys and values. The bits of a query's output do not depend on the other queries
//! of its task: a product sums each row alone, and a key that a query does not attend counts as zero.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

use super::cache::KeysAndValues;
use super::chunk::{CHUNK_GROUPS, CHUNK_KEYS, CHUNK_STEPS, Chunk, ChunkAhead, ChunkWeights, PART_KEYS, stored_lines};
use super::element::KvElement;
use super::groups::GROUP_SIZE;
use super::products::{Dots, Keys, Product, STEP_VALUES, Values};
use super::query::{QUERIES_TOGETHER, Query, cap};
use super::{AttentionShape, HeadScores, Task};
use crate::isa::{Kernel, LANES, Simd, Tiles};
use crate::lines::{Ahead, BLOCK_COLUMNS, BLOCK_ROWS, Block, LeftSide, Line, RightSide, STEP_LINES};
use crate::vector_tile::{self, Bf16Pairs};

/// The number of products that yield the scores of a chunk.
const CHUNK_PARTS: usize = CHUNK_KEYS / PART_KEYS;

/// The attention of one task.
pub(super) struct Attend<'a, 'y, E: KvElement, D> {
    pub(super) shape: &'a AttentionShape,
    pub(super) q: &'a [f32],
    pub(super) heads: HeadScores<'a>,
    pub(super) cache: &'a KeysAndValues<E>,
    pub(super) task: Task<'a, 'y>,
    /// The way to multiply: in pairs of bf16 or in single precision.
    pub(super) dots: D,
    /// The tiles of this thread, or `None` if vectors multiply.
    pub(super) tiles: Option<&'a Tiles>,
    /// The number of rows of each block of queries.
    pub(super) block_rows: usize,
    /// True if keys and values are copied to the layout of tiles, in bf16, before they are multiplied.
    pub(super) is_laid_out: bool,
}

thread_local! {
    /// The memory of the thread's last task. It is kept for the next task, because an allocation takes as long as a
    /// short task.
    static MEMORY: Cell<Memory> = Cell::default();
}

/// The working memory of a task.
#[derive(Default)]
struct Memory {
    /// The scaled queries: `[blocks][lines][rows]`.
    q: Vec<Line>,
    /// The scores of one block: `[parts of keys]`.
    scores: Vec<Block<f32>>,
    /// The weights of one block: `[lines][rows]`.
    weights: Vec<Line>,
    /// The keys and the values of a chunk, if they are laid out.
    keys: Vec<Line>,
    values: Vec<Line>,
    /// The sums of weighted values so far: `[blocks][steps of dimensions]`.
    gathered: Vec<Block<f32>>,
}

/// Copies of a chunk's keys and values, for chunks that cannot be used in place.
struct Copied<E: KvElement> {
    keys: Vec<E::Stored>,
    /// With latent attention: the values, copied from the first elements of each key.
    values_in_keys: Vec<E::Stored>,
    values: Vec<E::Stored>,
}

impl<E: KvElement, D: Dots<E>> Kernel for Attend<'_, '_, E, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut queries = self.queries();
        let mut memory = self.memory(queries.len());
        let mut copied = Copied { keys: Vec::new(), values_in_keys: Vec::new(), values: Vec::new() };
        self.put_queries(simd, &mut memory.q);
        let end_key = queries.last().map_or(0, |query| query.end_key);
        let first_chunk = queries.first().map_or(0, |query| query.first_key / CHUNK_KEYS);
        for first_key in (first_chunk * CHUNK_KEYS..end_key).step_by(CHUNK_KEYS) {
            self.attend_chunk(simd, first_key..end_key, &mut queries, (&mut memory, &mut copied));
        }
        self.write(&queries, &memory.gathered);
        MEMORY.set(memory);
    }
}

impl<E: KvElement, D: Dots<E>> Attend<'_, '_, E, D> {
    fn queries(&self) -> Vec<Query> {
        let first_position = self.task.row.first_position() + self.task.first_token;
        let num_heads = self.task.heads.len();
        let [sinks, slopes] =
            [self.heads.sinks, self.heads.slopes].map(|scores| scores.map(|scores| &scores[self.task.heads.clone()]));
        let num_keys_of_tokens = (0..self.task.out.len()).map(|token| first_position + token + 1);
        let queries = num_keys_of_tokens.flat_map(|num_keys| (0..num_heads).map(move |head| (num_keys, head)));
        let sink = |head: usize| sinks.map(|sinks| sinks[head]);
        let slope = |head: usize| slopes.map_or(0.0, |slopes| slopes[head]);
        let query = |(end_key, head)| {
            let keys = self.shape.first_key(end_key)..end_key;
            Query::new(keys, sink(head), slope(head))
        };
        queries.map(query).collect()
    }

    /// Returns the number of steps over a key's dimensions.
    fn key_steps(&self) -> usize {
        self.shape.head_dim.div_ceil(STEP_VALUES)
    }

    /// Returns the number of steps over a value's dimensions.
    fn value_steps(&self) -> usize {
        self.shape.value_dim.div_ceil(STEP_VALUES)
    }

    /// Returns the memory of this thread, in the sizes that the task needs. The gathered sums are zero; everything else
    /// has arbitrary values from another task.
    fn memory(&self, num_queries: usize) -> Memory {
        let (key_steps, value_steps, block_rows) = (self.key_steps(), self.value_steps(), self.block_rows);
        let num_blocks = num_queries.div_ceil(block_rows);
        let (no_line, no_block) = (Line([0; LANES]), Block([[0.0; BLOCK_COLUMNS]; BLOCK_ROWS]));
        let mut memory = MEMORY.take();
        memory.q.resize(num_blocks * key_steps * D::STEP_LINES * block_rows, no_line);
        memory.scores.resize(CHUNK_PARTS, no_block.clone());
        memory.weights.resize(CHUNK_STEPS * D::STEP_LINES * block_rows, no_line);
        if self.is_laid_out() {
            memory.keys.resize(CHUNK_PARTS * key_steps * STEP_LINES, no_line);
            memory.values.resize(value_steps * CHUNK_STEPS * STEP_LINES, no_line);
        }
        memory.gathered.resize(num_blocks * value_steps, no_block);
        for block in &mut memory.gathered {
            block.0[..block_rows].fill([0.0; BLOCK_COLUMNS]);
        }
        memory
    }

    /// Writes the scaled queries to `to`: `[blocks][lines][rows]`.
    #[inline(always)]
    fn put_queries<S: Simd>(&self, simd: S, to: &mut [Line]) {
        let (head_dim, num_heads, block_rows) = (self.shape.head_dim, self.task.heads.len(), self.block_rows);
        let block_lines = self.key_steps() * D::STEP_LINES * block_rows;
        for idx in 0..self.task.out.len() * num_heads {
            let token = self.task.row.first_token + self.task.first_token + idx / num_heads;
            let head = self.task.heads.start + idx % num_heads;
            let q = &self.q[token * self.shape.q_width() + head * head_dim..][..head_dim];
            for (step, q) in q.chunks(STEP_VALUES).enumerate() {
                let mut values = [0.0; STEP_VALUES];
                for (value, q) in values.iter_mut().zip(q) {
                    *value = q * self.shape.scale;
                }
                let first = idx / block_rows * block_lines + step * D::STEP_LINES * block_rows + idx % block_rows;
                D::put(simd, &values, &mut to[first..], block_rows);
            }
        }
    }

    /// True if keys and values are laid out. If `D` has no such layout, the compiler drops the code for it.
    #[inline(always)]
    fn is_laid_out(&self) -> bool {
        D::CAN_BE_LAID_OUT && self.is_laid_out
    }

    /// Computes the attention of all queries to the first chunk of `keys`.
    #[inline(always)]
    fn attend_chunk<S: Simd>(
        &self,
        simd: S,
        keys: Range<usize>,
        queries: &mut [Query],
        (memory, copied): (&mut Memory, &mut Copied<E>),
    ) {
        let Self { shape, cache, task, dots, block_rows, .. } = self;
        let (first_key, num_keys) = (keys.start, keys.len().min(CHUNK_KEYS));
        let mut places = [0; 2 * CHUNK_GROUPS];
        let (places, next_places) = self.places_of_groups(keys, &mut places);
        let mut keys = Chunk::new(&cache.k, places, shape.head_dim);
        let mut values = match &cache.v {
            Some(values) => Chunk::new(values, places, shape.value_dim),
            None => keys.values_in_keys(shape.value_dim, &mut copied.values_in_keys),
        };
        let mut ahead = ChunkAhead::new(cache, next_places, [shape.head_dim, shape.value_dim]);
        if !shape.head_dim.is_multiple_of(LANES) {
            keys = keys.copy_keys(&mut copied.keys);
        }
        let mut has_to_gather_each = false;
        let all_attend_all = attended_by_all(queries, first_key) == (0..CHUNK_KEYS);
        if !all_attend_all || !shape.value_dim.is_multiple_of(LANES) {
            // All queries of a single token attend to the same keys.
            let is_one_token = task.out.len() == 1;
            let some_keys = if is_one_token { queries[0].keys_of_chunk(first_key) } else { 0..num_keys };
            values = values.copy_values(&some_keys, &mut copied.values);
            has_to_gather_each = !all_attend_all && !is_one_token && !values.is_finite();
        }
        if self.is_laid_out() {
            keys.lay_out_keys(simd, *dots, &mut ahead, &mut memory.keys);
            values.lay_out_values(simd, *dots, &mut ahead, &mut memory.values);
        }
        for (block, queries) in queries.chunks_mut(*block_rows).enumerate() {
            let attended = attended(queries, first_key);
            if attended.is_empty() {
                continue;
            }
            self.score(simd, (block, attended.end), (&keys, &mut ahead), memory);
            self.weigh(simd, (block, queries, first_key), [&keys, &values], memory);
            let apart = has_to_gather_each.then_some((&*queries, first_key));
            self.gather(simd, (block, attended.end, apart), (&values, &mut ahead), memory);
        }
        ahead.ask_for_rest(simd);
    }

    /// Returns the places of the first keys of groups: of the groups in the first chunk of `keys`, and of those in the
    /// next chunk.
    fn places_of_groups<'p>(
        &self,
        keys: Range<usize>,
        places: &'p mut [usize; 2 * CHUNK_GROUPS],
    ) -> (&'p [usize], &'p [usize]) {
        let mut num_places = 0;
        for (place, key) in places.iter_mut().zip(keys.step_by(GROUP_SIZE)) {
            *place = self.task.row.kv_place(self.shape, self.task.kv_head, key);
            num_places += 1;
        }
        places[..num_places].split_at(CHUNK_GROUPS.min(num_places))
    }

    /// Multiplies the queries of a block with the first `num_keys` keys of a chunk.
    #[inline(always)]
    fn score<S: Simd>(
        &self,
        simd: S,
        (block, num_keys): (usize, usize),
        (keys, ahead): (&Chunk<'_, E>, &mut ChunkAhead),
        memory: &mut Memory,
    ) {
        let (num_steps, block_rows) = (self.key_steps(), self.block_rows);
        let block_lines = num_steps * D::STEP_LINES * block_rows;
        let q = &memory.q[block * block_lines..][..block_lines];
        let scores = &mut memory.scores[..num_keys.div_ceil(PART_KEYS)];
        for scores in &mut *scores {
            scores.0[..block_rows].fill([0.0; BLOCK_COLUMNS]);
        }
        if self.is_laid_out() {
            for (keys, scores) in memory.keys.chunks_exact(num_steps * STEP_LINES).zip(scores) {
                self.add_laid_out(simd, q, keys, scores);
            }
        } else {
            let right = &Keys(&keys.groups()[..num_keys.div_ceil(GROUP_SIZE)]);
            let kinds = PhantomData::<(E, D)>;
            simd.call(Product { left: q, num_rows: block_rows, right, ahead, sums: scores, kinds });
        }
        ahead.ask(simd, stored_lines::<E>(STEP_LINES));
    }

    /// Computes the weights of a block from its scores, and rescales the values that the block has gathered so far.
    #[inline(always)]
    fn weigh<S: Simd>(
        &self,
        simd: S,
        (block, queries, first_key): (usize, &mut [Query], usize),
        chunks: [&Chunk<'_, E>; 2],
        memory: &mut Memory,
    ) {
        let (num_steps, block_rows) = (self.value_steps(), self.block_rows);
        let gathered = &mut memory.gathered[block * num_steps..][..num_steps];
        for (group, queries) in queries.chunks_mut(QUERIES_TOGETHER).enumerate() {
            let first_row = group * QUERIES_TOGETHER;
            let mut weights = [[0.0; CHUNK_KEYS]; QUERIES_TOGETHER];
            for (idx, weights) in weights.iter_mut().enumerate().take(queries.len()) {
                *weights = scores_of(&memory.scores, first_row + idx);
            }
            let weights = &mut weights[..queries.len()];
            let rescales = self.weigh_few(simd, (queries, first_key), chunks, weights);
            for (row, (weights, rescale)) in (first_row..).zip(weights.iter().zip(rescales)) {
                if rescale != 1.0 {
                    for block in &mut *gathered {
                        scale_row(simd, &mut block.0[row], rescale);
                    }
                }
                for (step, weights) in weights.as_chunks().0.iter().enumerate() {
                    let first = step * D::STEP_LINES * block_rows + row;
                    D::put(simd, weights, &mut memory.weights[first..], block_rows);
                }
            }
        }
    }

    /// Replaces the scores of a few queries with weights; keys that a query does not attend get zero. Returns the
    /// factors, one per query, that rescale the values gathered so far.
    #[inline(always)]
    fn weigh_few<S: Simd>(
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
            if let Some(soft_cap) = self.shape.soft_cap {
                cap(simd, soft_cap, weights);
            }
            if self.heads.slopes.is_some() {
                query.add_distances(first_key, weights);
            }
        }
        let rescales = Query::exponentiate(simd, queries, weights);
        if E::HAS_SCALES {
            for (query, weights) in queries.iter().zip(weights) {
                values.scale(simd, weights);
                // A scale factor may be NaN, which makes a weight of zero NaN.
                fill_outside(weights, &query.keys_of_chunk(first_key), 0.0);
            }
        }
        rescales
    }

    /// Adds the first `num_keys` values of a chunk, times their weights, to the values gathered so far. With `apart`,
    /// each query has a product of its own, in which the values that the query does not attend are zero. Otherwise such
    /// a value could be infinite or NaN, and its product with a weight of zero is NaN.
    #[inline(always)]
    fn gather<S: Simd>(
        &self,
        simd: S,
        (block, num_keys, apart): (usize, usize, Option<(&[Query], usize)>),
        (values, ahead): (&Chunk<'_, E>, &mut ChunkAhead),
        memory: &mut Memory,
    ) {
        let (num_steps, block_rows) = (self.value_steps(), self.block_rows);
        let gathered = &mut memory.gathered[block * num_steps..][..num_steps];
        let before = apart.map(|_| gathered.to_vec());
        let (mut after, mut copied) = (before.clone(), Vec::new());
        for query in 0..apart.map_or(1, |(queries, _)| queries.len()) {
            let mut its_own = None;
            if let Some((queries, first_key)) = apart {
                let keys = queries[query].keys_of_chunk(first_key);
                let values = its_own.insert(values.copy_values(&keys, &mut copied));
                if self.is_laid_out() {
                    values.lay_out_values(simd, self.dots, ahead, &mut memory.values);
                }
            }
            let groups = &its_own.as_ref().unwrap_or(values).groups()[..num_keys.div_ceil(GROUP_SIZE)];
            if self.is_laid_out() {
                let num_key_steps = num_keys.div_ceil(STEP_VALUES);
                let weights = &memory.weights[..num_key_steps * block_rows];
                for (values, gathered) in memory.values.chunks_exact(CHUNK_STEPS * STEP_LINES).zip(&mut *gathered) {
                    self.add_laid_out(simd, weights, &values[..num_key_steps * STEP_LINES], gathered);
                }
            } else {
                let (left, right, kinds) = (&memory.weights[..], &Values(groups), PhantomData::<(E, D)>);
                simd.call(Product { left, num_rows: block_rows, right, ahead, sums: gathered, kinds });
            }
            if let (Some(before), Some(after)) = (&before, &mut after) {
                after.iter_mut().zip(&*gathered).for_each(|(to, gathered)| to.0[query] = gathered.0[query]);
                gathered.clone_from_slice(before);
            }
        }
        if let Some(after) = after {
            gathered.clone_from_slice(&after);
        }
    }

    /// Adds the products of `left` and `right` to `sums` `[rows, 32]`. The left-hand side is `[steps][rows]`, the
    /// right-hand side `[steps][2][16 words][16 columns]`.
    #[inline(always)]
    fn add_laid_out<S: Simd>(&self, simd: S, left: &[Line], right: &[Line], sums: &mut Block<f32>) {
        let ahead = Ahead::nothing(right);
        match self.tiles {
            Some(tiles) => tiles.add_bf16_product(left, right, ahead, sums),
            None => {
                let left = LeftSide { lines: left, num_rows: self.block_rows };
                vector_tile::add_product(simd, Bf16Pairs, left, RightSide { lines: right, ahead }, sums);
            }
        }
    }

    fn write(&mut self, queries: &[Query], gathered: &[Block<f32>]) {
        let (num_steps, block_rows) = (self.value_steps(), self.block_rows);
        let outputs = self.task.out.iter_mut().flat_map(|token| token.chunks_mut(self.shape.value_dim));
        for ((idx, query), out) in queries.iter().enumerate().zip(outputs) {
            let gathered = &gathered[idx / block_rows * num_steps..][..num_steps];
            for (out, block) in out.chunks_mut(STEP_VALUES).zip(gathered) {
                out.iter_mut().zip(&block.0[idx % block_rows]).for_each(|(out, value)| *out = value / query.sum);
            }
        }
    }
}

/// Returns the keys of the chunk at `first_key` that at least one query attends to. The queries are in the order of
/// their tokens.
#[inline(always)]
fn attended(queries: &[Query], first_key: usize) -> Range<usize> {
    match queries {
        [first, .., last] => first.keys_of_chunk(first_key).start..last.keys_of_chunk(first_key).end,
        [query] => query.keys_of_chunk(first_key),
        [] => 0..0,
    }
}

/// Returns the keys of the chunk at `first_key` that every query attends. The queries are in the order of their tokens.
#[inline(always)]
fn attended_by_all(queries: &[Query], first_key: usize) -> Range<usize> {
    match queries {
        [first, .., last] => last.keys_of_chunk(first_key).start..first.keys_of_chunk(first_key).end,
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
