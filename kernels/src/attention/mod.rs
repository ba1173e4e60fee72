//! Paged attention: causal, grouped-query, over K and V caches kept in blocks.
//!
//! Doors: [`write_kv`] puts this step's keys or values into a cache, then [`paged_attention`] attends. `rows` says where
//! a row's tokens and keys lie, `attend` is the arithmetic of one piece of work, and this file cuts the work.
//!
//! The token at position p attends the keys 0..=p in chunks that start at fixed positions, with a running maximum and sum.
//! Neither the other rows, nor the cut of the prompt, nor the threads change a bit of its output.

mod attend;
mod rows;
#[cfg(test)]
mod tests;
mod tile;
mod vectors;

pub use rows::{AttentionRow, AttentionShape};

use rayon::prelude::*;

use crate::isa::{self, Isa};
use attend::Attend;

/// Queries (tokens × heads of a group) that share one pass over the keys.
const TASK_QUERIES: usize = 64;
/// Multiply-adds below which waking other threads costs more than it gives.
const MIN_PARALLEL_MULTIPLY_ADDS: usize = 1 << 18;

/// The caches of one layer, each `[num_blocks, num_kv_heads, block_size, head_dim]`: the keys that a head reads one after
/// the other are neighbours in memory. (With heads inside tokens they are often 4096 bytes apart, and fall into the same
/// few sets of the first-level cache.)
#[derive(Debug, Clone, Copy)]
pub struct KvCache<'a> {
    /// Keys.
    pub k: &'a [f32],
    /// Values.
    pub v: &'a [f32],
}

/// Writes this step's keys (or values) `[tokens, num_kv_heads, head_dim]` to where each token belongs in `cache`
/// `[num_blocks, num_kv_heads, block_size, head_dim]`.
///
/// # Panics
/// When the lengths do not fit, a block table is too short or names a block that `cache` lacks.
pub fn write_kv(shape: &AttentionShape, rows: &[AttentionRow<'_>], tokens: &[f32], cache: &mut [f32]) {
    shape.check();
    let (width, head_dim) = (shape.kv_width(), shape.head_dim);
    assert_eq!(cache.len() % (shape.block_size * width), 0, "a cache of {} values is not whole blocks", cache.len());
    let mut offsets = Vec::new();
    for row in rows {
        row.check(shape);
        let end = (row.first_token + row.num_tokens) * width;
        assert!(end <= tokens.len(), "a row ends at value {end} of {} in tokens", tokens.len());
        offsets.resize(row.num_tokens, 0);
        for kv_head in 0..shape.num_kv_heads {
            row.kv_offsets(shape, kv_head, row.first_position(), &mut offsets);
            let heads = tokens[..end].chunks_exact(head_dim).skip(row.first_token * shape.num_kv_heads + kv_head);
            for (head, to) in heads.step_by(shape.num_kv_heads).zip(&offsets) {
                cache[*to..*to + head_dim].copy_from_slice(head);
            }
        }
    }
}

/// Attention of every token of `rows`: q and `out` are `[tokens, num_heads, head_dim]`.
///
/// The keys and values of this step must be in `cache` already. Rows lie one after the other and cover all tokens.
///
/// # Panics
/// When the lengths do not fit, a block table is too short or names a block that `cache` lacks.
pub fn paged_attention(
    shape: &AttentionShape,
    rows: &[AttentionRow<'_>],
    q: &[f32],
    cache: KvCache<'_>,
    out: &mut [f32],
) {
    let attention = Attention { isa: isa::active(), shape, rows, q, cache };
    attention.compute(out);
}

/// What [`paged_attention`] is given, and the instruction set to use.
pub(crate) struct Attention<'a> {
    pub(crate) isa: Isa,
    pub(crate) shape: &'a AttentionShape,
    pub(crate) rows: &'a [AttentionRow<'a>],
    pub(crate) q: &'a [f32],
    pub(crate) cache: KvCache<'a>,
}

/// Some consecutive tokens of a row and the query heads that share a key head.
struct Task<'a, 'y> {
    row: &'a AttentionRow<'a>,
    kv_head: usize,
    /// Within the row.
    first_token: usize,
    /// `[tokens][heads of the group, head_dim]`
    out: Vec<&'y mut [f32]>,
}

impl Attention<'_> {
    pub(crate) fn compute(&self, out: &mut [f32]) {
        self.check(out.len());
        let num_multiply_adds: usize =
            self.rows.iter().map(|row| 2 * row.num_tokens * row.context_len * self.shape.q_width()).sum();
        let tasks = self.cut(out);
        if num_multiply_adds < MIN_PARALLEL_MULTIPLY_ADDS {
            tasks.into_iter().for_each(|task| self.run(task));
        } else {
            tasks.into_par_iter().for_each(|task| self.run(task));
        }
    }

    fn check(&self, out_len: usize) {
        let shape = self.shape;
        shape.check();
        let width = shape.q_width();
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
            num_tokens * width,
            "q holds {} values, not {num_tokens} tokens of {width}",
            self.q.len()
        );
        assert_eq!(out_len, num_tokens * width, "out holds {out_len} values, not {num_tokens} tokens of {width}");
        let KvCache { k, v } = self.cache;
        assert_eq!(k.len(), v.len(), "the cache holds {} values of keys but {} of values", k.len(), v.len());
    }

    fn cut<'y>(&self, out: &'y mut [f32]) -> Vec<Task<'_, 'y>> {
        let group_size = self.shape.group_size();
        let group_width = group_size * self.shape.head_dim;
        let task_tokens = (TASK_QUERIES / group_size).max(1);
        let mut tasks = Vec::new();
        let mut out_tokens = out.chunks_mut(self.shape.q_width());
        for row in self.rows {
            for first_token in (0..row.num_tokens).step_by(task_tokens) {
                let first_task = tasks.len();
                for kv_head in 0..self.shape.num_kv_heads {
                    tasks.push(Task { row, kv_head, first_token, out: Vec::with_capacity(task_tokens) });
                }
                let num_tokens = task_tokens.min(row.num_tokens - first_token);
                for out in out_tokens.by_ref().take(num_tokens) {
                    let groups = out.chunks_mut(group_width);
                    tasks[first_task..].iter_mut().zip(groups).for_each(|(task, group)| task.out.push(group));
                }
            }
        }
        tasks
    }

    fn run(&self, task: Task<'_, '_>) {
        self.isa.run(Attend { shape: self.shape, q: self.q, cache: self.cache, task });
    }
}
