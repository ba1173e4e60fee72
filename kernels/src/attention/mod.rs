//! Paged attention: causal, grouped-query, over K and V caches kept in blocks.
//!
//! Entry points: [`write_kv`] writes a step's keys and values to a [`KvCache`], then [`paged_attention`] attends.
//! `rows` computes the places of a row's keys (their indices in the cache), `cache` stores keys and values in one of
//! several types (`element`), `attend` computes one task, and this file splits a step into tasks.
//!
//! The token at position p attends to the keys 0..=p in chunks that start at fixed positions, with a running maximum
//! and sum. With a [`Window`], the token attends only to the last of these keys. The output of a token does not depend
//! on the other rows, on how the prompt is split over steps, or on the number of threads: its bits stay the same.

mod attend;
mod cache;
mod chunk;
mod element;
mod groups;
mod products;
mod query;
mod rows;
#[cfg(test)]
mod tests;

pub use cache::{KvCache, KvType};
pub use rows::{AttentionRow, AttentionShape, Window};

use std::ops::Range;

use rayon::prelude::*;

use crate::isa::{self, Isa};
use crate::lines::{BLOCK_ROWS, TILE_SIZE};
use attend::Attend;
use cache::{KeysAndValues, TypedCache};
use element::{Bf16Exact, KvElement};
use products::{Floats, Pairs};

/// The maximum number of queries (tokens × heads that share a key head) of a task, unless a single token has more. All
/// queries of a task share one pass over the keys.
const TASK_QUERIES: usize = 256;
/// The maximum number of queries of a task for which vectors convert int8 keys and values to bf16 each time they read
/// them. If a task has more queries, keys and values are converted once per chunk.
const MAX_CONVERTING_QUERIES: usize = 12;
/// The minimum number of query heads of a task whose key head has more. Every task reads all keys of its head.
const MIN_TASK_HEADS: usize = 4;
/// The number of multiply-adds below which waking other threads costs more than it saves.
const MIN_PARALLEL_MULTIPLY_ADDS: usize = 1 << 18;

/// Writes this step's keys `[tokens, num_kv_heads, head_dim]` and values `[tokens, num_kv_heads, value_dim]` to the
/// places of their tokens in `cache`, rounded to the type of `cache`. The values are not read if `cache` stores only
/// keys.
///
/// # Panics
/// When `shape` or a row is invalid, `shape` is not that of `cache`, `kv` is shorter than the tokens of `rows`, or a
/// block table is too short or names a block that `cache` lacks.
pub fn write_kv(shape: &AttentionShape, rows: &[AttentionRow<'_>], kv: [&[f32]; 2], cache: &mut KvCache) {
    shape.check();
    match &mut cache.0 {
        TypedCache::F32(cache) => write_all(shape, rows, kv, cache),
        TypedCache::F16(cache) => write_all(shape, rows, kv, cache),
        TypedCache::Bf16(cache) => write_all(shape, rows, kv, cache),
        TypedCache::Int8(cache) => write_all(shape, rows, kv, cache),
    }
}

fn write_all<E: KvElement>(
    shape: &AttentionShape,
    rows: &[AttentionRow<'_>],
    [k, v]: [&[f32]; 2],
    cache: &mut KeysAndValues<E>,
) {
    cache.check(shape);
    write(shape, rows, (k, shape.head_dim), |place, key| cache.k.write_key(place, key));
    if let Some(values) = &mut cache.v {
        write(shape, rows, (v, shape.value_dim), |place, value| values.write_value(place, value));
    }
}

/// Calls `write` for each key, or value, of a step's `tokens` `[tokens, num_kv_heads, dim]`, with its place and its
/// numbers.
fn write(
    shape: &AttentionShape,
    rows: &[AttentionRow<'_>],
    (tokens, dim): (&[f32], usize),
    mut write: impl FnMut(usize, &[f32]),
) {
    let width = shape.num_kv_heads * dim;
    let mut places = Vec::new();
    for row in rows {
        row.check(shape);
        let end = (row.first_token + row.num_tokens) * width;
        assert!(end <= tokens.len(), "a row ends at value {end}, but tokens hold only {}", tokens.len());
        places.resize(row.num_tokens, 0);
        for kv_head in 0..shape.num_kv_heads {
            row.kv_places(shape, kv_head, row.first_position(), &mut places);
            let heads = tokens[..end].chunks_exact(dim).skip(row.first_token * shape.num_kv_heads + kv_head);
            heads.step_by(shape.num_kv_heads).zip(&places).for_each(|(head, place)| write(*place, head));
        }
    }
}

/// The scores and factors of query heads that attention adds to the scores of keys.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadScores<'a> {
    /// One score for each head, `[num_heads]`, that takes part in each softmax, neither scaled nor capped, as that of a
    /// key whose value is zero.
    pub sinks: Option<&'a [f32]>,
    /// One factor for each head, `[num_heads]`. The factor times the distance from the query's position to the key's,
    /// which is not positive, is added to each scaled and capped score.
    pub slopes: Option<&'a [f32]>,
}

/// Computes the attention of every token of `rows`: `q` is `[tokens, num_heads, head_dim]`, `out` is
/// `[tokens, num_heads, value_dim]`.
///
/// The keys and values of this step must already be in `cache`. The rows must be in token order and cover all tokens.
///
/// # Panics
/// When `shape` or a row is invalid, `cache` has another shape, or `rows` are out of order or leave out a token.
/// When `q`, `out` or a list of `heads` has another length. When a block table is too short or names a block that
/// `cache` lacks.
pub fn paged_attention(
    shape: &AttentionShape,
    rows: &[AttentionRow<'_>],
    (q, heads): (&[f32], HeadScores<'_>),
    cache: &KvCache,
    out: &mut [f32],
) {
    let attention = Attention { isa: isa::active(), shape, rows, q, heads, cache };
    attention.compute(out);
}

/// The arguments of [`paged_attention`], and the instruction set to use.
pub(crate) struct Attention<'a> {
    pub(crate) isa: Isa,
    pub(crate) shape: &'a AttentionShape,
    pub(crate) rows: &'a [AttentionRow<'a>],
    pub(crate) q: &'a [f32],
    pub(crate) heads: HeadScores<'a>,
    pub(crate) cache: &'a KvCache,
}

/// A unit of work: consecutive tokens of a row, and some or all of the query heads that share a key head.
struct Task<'a, 'y> {
    row: &'a AttentionRow<'a>,
    kv_head: usize,
    heads: Range<usize>,
    /// The index of the first token among the row's tokens of this step.
    first_token: usize,
    /// The output, `[tokens][heads, value_dim]`.
    out: Vec<&'y mut [f32]>,
}

impl Attention<'_> {
    pub(crate) fn compute(&self, out: &mut [f32]) {
        self.check(out.len());
        let per_key = self.shape.q_width() + self.shape.out_width();
        let num_multiply_adds: usize = self.rows.iter().map(|row| row.num_tokens * row.context_len * per_key).sum();
        if num_multiply_adds < MIN_PARALLEL_MULTIPLY_ADDS {
            self.cut(out, 1).into_iter().for_each(|task| self.run(task));
        } else {
            self.cut(out, rayon::current_num_threads()).into_par_iter().for_each(|task| self.run(task));
        }
    }

    fn check(&self, out_len: usize) {
        let shape = self.shape;
        shape.check();
        let (q_width, out_width) = (shape.q_width(), shape.out_width());
        let mut num_tokens = 0;
        for row in self.rows {
            row.check(shape);
            assert_eq!(
                row.first_token, num_tokens,
                "a row starts at token {} instead of {num_tokens}",
                row.first_token
            );
            num_tokens += row.num_tokens;
        }
        assert_eq!(
            self.q.len(),
            num_tokens * q_width,
            "q holds {} values, not {num_tokens} tokens of {q_width}",
            self.q.len()
        );
        for (name, scores) in [("sinks", self.heads.sinks), ("slopes", self.heads.slopes)] {
            let (len, num_heads) = (scores.map_or(shape.num_heads, <[f32]>::len), shape.num_heads);
            assert_eq!(len, num_heads, "there are {len} {name} for {num_heads} heads");
        }
        assert_eq!(
            out_len,
            num_tokens * out_width,
            "out holds {out_len} values, not {num_tokens} tokens of {out_width}"
        );
        match &self.cache.0 {
            TypedCache::F32(cache) => cache.check(shape),
            TypedCache::F16(cache) => cache.check(shape),
            TypedCache::Bf16(cache) => cache.check(shape),
            TypedCache::Int8(cache) => cache.check(shape),
        }
    }

    /// Cuts the step into tasks, if possible into `num_wanted` or more.
    fn cut<'y>(&self, out: &'y mut [f32], num_wanted: usize) -> Vec<Task<'_, 'y>> {
        let task_heads = self.task_heads(num_wanted);
        let task_width = task_heads * self.shape.value_dim;
        let task_tokens = (TASK_QUERIES / task_heads).max(1);
        let mut tasks = Vec::new();
        let mut out_tokens = out.chunks_mut(self.shape.out_width());
        for row in self.rows {
            for first_token in (0..row.num_tokens).step_by(task_tokens) {
                let first_task = tasks.len();
                for first_head in (0..self.shape.num_heads).step_by(task_heads) {
                    let (kv_head, heads) = (first_head / self.shape.group_size(), first_head..first_head + task_heads);
                    tasks.push(Task { row, kv_head, heads, first_token, out: Vec::with_capacity(task_tokens) });
                }
                let num_tokens = task_tokens.min(row.num_tokens - first_token);
                for out in out_tokens.by_ref().take(num_tokens) {
                    let groups = out.chunks_mut(task_width);
                    tasks[first_task..].iter_mut().zip(groups).for_each(|(task, group)| task.out.push(group));
                }
            }
        }
        tasks
    }

    /// Returns the number of query heads of a task: all that share a key head, or fewer if there would be fewer than
    /// `num_wanted` tasks.
    fn task_heads(&self, num_wanted: usize) -> usize {
        let group_size = self.shape.group_size();
        let task_tokens = (TASK_QUERIES / group_size).max(1);
        let num_parts: usize = self.rows.iter().map(|row| row.num_tokens.div_ceil(task_tokens)).sum();
        let num_tasks = num_parts * self.shape.num_kv_heads;
        let has_enough = |heads: &usize| num_tasks * (group_size / heads) >= num_wanted;
        let is_possible = |heads: &usize| group_size.is_multiple_of(*heads) && *heads >= MIN_TASK_HEADS.min(group_size);
        let possible = || (1..=group_size).rev().filter(is_possible);
        possible().find(has_enough).or_else(|| possible().next_back()).unwrap_or(group_size)
    }

    fn run(&self, task: Task<'_, '_>) {
        let rounds = self.isa.rounds_to_bf16();
        match &self.cache.0 {
            TypedCache::F32(cache) => self.attend_floats(cache, task),
            TypedCache::F16(cache) => self.attend_floats(cache, task),
            TypedCache::Bf16(cache) if rounds => self.attend_pairs(cache, task),
            TypedCache::Bf16(cache) => self.attend_floats(cache, task),
            TypedCache::Int8(cache) if rounds => self.attend_pairs(cache, task),
            TypedCache::Int8(cache) => self.attend_floats(cache, task),
        }
    }

    fn attend_floats<E: KvElement>(&self, cache: &KeysAndValues<E>, task: Task<'_, '_>) {
        let &Self { shape, q, heads, .. } = self;
        let block_rows = self.block_rows(&task);
        let attend = Attend { shape, q, heads, cache, task, dots: Floats, tiles: None, block_rows, is_laid_out: false };
        self.isa.run_floats(attend);
    }

    fn attend_pairs<E: Bf16Exact>(&self, cache: &KeysAndValues<E>, task: Task<'_, '_>) {
        let &Self { shape, q, heads, .. } = self;
        let block_rows = self.block_rows(&task);
        let is_converted_often = E::IS_CONVERTED && self.num_queries(&task) > MAX_CONVERTING_QUERIES;
        self.isa.with_tiles([block_rows, TILE_SIZE], |tiles| {
            let is_laid_out = tiles.is_some() || is_converted_often;
            self.isa.run_pairs(Attend { shape, q, heads, cache, task, dots: Pairs, tiles, block_rows, is_laid_out });
        });
    }

    fn num_queries(&self, task: &Task<'_, '_>) -> usize {
        task.out.len() * task.heads.len()
    }

    /// Returns the number of rows per block, if the queries of a task are spread evenly over as few blocks as possible.
    fn block_rows(&self, task: &Task<'_, '_>) -> usize {
        let num_queries = self.num_queries(task);
        num_queries.div_ceil(num_queries.div_ceil(BLOCK_ROWS))
    }
}
