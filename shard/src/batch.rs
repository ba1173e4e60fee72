//! One step as data: the rows it reads, their tokens one after the other, and what is sampled.
//!
//! Doors: [`Batch`] and its `push_` methods, and [`StepOutput`], what a backend answers. It is the same for every backend
//! and knows no graph but the samplers it hands on. It checks nothing: `kv_cache` has done that.

use std::ops::Range;
use std::sync::Arc;

use crate::graph::{Graph, Input};
use crate::sampling::{BatchSampler, Column, SamplingInputs};

/// Stands for the token that a row sampled for a position, which is in the token history.
pub(crate) const SAMPLED_TOKEN: i32 = -1;

/// The rows of one step, ragged: prompt chunks first, then rows that decode.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// `[tokens]`; [`SAMPLED_TOKEN`] where the token history knows the id.
    pub(crate) token_ids: Vec<i32>,
    /// `[tokens]`
    pub(crate) positions: Vec<u32>,
    pub(crate) rows: Vec<BatchRow>,
    /// The rows' block tables, one after the other.
    block_tables: Vec<u32>,
    pub(crate) sampled: Vec<SampledRow>,
    sampling_inputs: SamplingInputs,
    pub(crate) targets: PromptTargets,
}

/// Where a row's tokens are, and what they belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BatchRow {
    pub(crate) slot: usize,
    /// Index of its first token in the batch.
    pub(crate) first_token: usize,
    /// Its tokens in this step: the last ones of its context.
    pub(crate) num_tokens: usize,
    /// Its tokens in the KV cache after this step.
    pub(crate) context_len: usize,
    block_table: Range<usize>,
}

/// A row whose last token gives logits, from which a token is sampled.
#[derive(Debug)]
pub(crate) struct SampledRow {
    /// Index among [`Batch::rows`].
    pub(crate) row: usize,
    /// Tokens of its prompt.
    pub(crate) prompt_len: usize,
    /// From logits to a token; see [`crate::sampling::Samplers::graph`].
    pub(crate) sampler: Arc<Graph>,
    /// What a batch of compiled samplers needs for this row.
    pub(crate) batch_sampler: BatchSampler,
}

/// Prompt tokens whose log-probability is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PromptTargets {
    /// Index in the batch of the token before each target.
    pub(crate) token_indices: Vec<i32>,
    pub(crate) token_ids: Vec<i32>,
}

/// What a step made.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct StepOutput {
    /// One per [`Batch::sampled`].
    pub(crate) tokens: Vec<SampledToken>,
    /// One per target.
    pub(crate) prompt_logprobs: Vec<f32>,
}

/// A token that a row sampled.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SampledToken {
    pub(crate) token_id: u32,
    /// NaN when the row's logits were not finite.
    pub(crate) logprob: f32,
    /// Best first, as many as asked for, ties included.
    pub(crate) top_tokens: Vec<(u32, f32)>,
}

impl Batch {
    /// Adds a row of `token_ids` in `slot`, the first of them at `position`, and answers its index.
    pub(crate) fn push_row(&mut self, slot: usize, position: usize, token_ids: &[i32], block_table: &[u32]) -> usize {
        let first_token = self.token_ids.len();
        let first_block = self.block_tables.len();
        self.token_ids.extend_from_slice(token_ids);
        let context_len = position + token_ids.len();
        self.positions.extend((position..context_len).map(|position| position as u32));
        self.block_tables.extend_from_slice(block_table);
        self.rows.push(BatchRow {
            slot,
            first_token,
            num_tokens: token_ids.len(),
            context_len,
            block_table: first_block..self.block_tables.len(),
        });
        self.rows.len() - 1
    }

    /// Lets `row` sample a token after its last one.
    pub(crate) fn push_sampled(&mut self, row: usize, prompt_len: usize, sampler: &RowSampler) {
        let batch_sampler = BatchSampler::of(&sampler.params);
        let num_generated = self.rows[row].context_len - prompt_len;
        self.sampling_inputs.push(&sampler.params, num_generated as u32);
        self.sampled.push(SampledRow { row, prompt_len, sampler: Arc::clone(&sampler.graph), batch_sampler });
    }

    /// Asks for the log-probability of `token_id`, which follows the token at `token_index`.
    pub(crate) fn push_target(&mut self, token_index: usize, token_id: i32) {
        self.targets.token_indices.push(token_index as i32);
        self.targets.token_ids.push(token_id);
    }

    /// The blocks of a row's context, in order of position.
    pub(crate) fn block_table(&self, row: &BatchRow) -> &[u32] {
        &self.block_tables[row.block_table.clone()]
    }

    /// Data that a graph asks for.
    pub(crate) fn input(&self, input: Input) -> Column<'_> {
        match input {
            Input::TokenIds => Column::I32(&self.token_ids),
            Input::Positions => Column::U32(&self.positions),
            Input::Sampling(input) => self.sampling_inputs.column(input),
        }
    }
}

/// How a row samples.
#[derive(Debug, Clone)]
pub(crate) struct RowSampler {
    pub(crate) params: proto::SamplingParams,
    pub(crate) graph: Arc<Graph>,
}
