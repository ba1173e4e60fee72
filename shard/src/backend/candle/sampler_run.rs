//! A sampler run on the same logits over and over: what `benches/sampler.rs` measures.

use std::sync::Arc;

use candle_core::Tensor;
use proto::SamplingParams;

use super::executor::{self, Step};
use super::state::State;
use super::{host, sampled_token};
use crate::backend::{Membership, StateLayout};
use crate::batch::{Batch, RowSampler};
use crate::graph::Graph;
use crate::sampling::Samplers;

/// Tokens that the row has read.
const PROMPT_TOKENS: usize = 512;

/// One row that samples.
#[derive(Debug)]
pub struct SamplerRun {
    graph: Arc<Graph>,
    batch: Batch,
    state: State,
    membership: Membership,
    /// `[1, vocab]`
    logits: Tensor,
}

impl SamplerRun {
    /// A row with a prompt of 512 tokens that samples by `params` from these logits, one per token of the vocabulary.
    ///
    /// # Panics
    /// When there are no logits.
    pub fn new(logits: Vec<f32>, params: SamplingParams) -> Self {
        let vocab_size = logits.len();
        let max_total_tokens = PROMPT_TOKENS + 1;
        let layout =
            StateLayout { num_slots: 1, num_blocks: 1, max_total_tokens, max_batch_prefill_tokens: PROMPT_TOKENS };
        let state = State::allocate(&[], &Graph::default(), layout).expect("the history of one row is small");
        let graph = Samplers::new(vocab_size).graph(&params).expect("samplers fit any vocabulary");
        let mut batch = Batch::default();
        let prompt: Vec<i32> = (0..PROMPT_TOKENS).map(|i| (i * 7 % vocab_size) as i32).collect();
        let row = batch.push_row(0, 0, &prompt, &[0]);
        // Half of it counts as generated.
        let params = Arc::new(params);
        let sampler = RowSampler { params, graph: Arc::clone(&graph), eos_token_ids: Arc::new([2]) };
        batch.push_sampled(row, PROMPT_TOKENS / 2, &sampler);
        state.history.current_tokens(&batch);
        let logits = host::shaped(logits, (1, vocab_size)).expect("one row of logits");
        Self { graph, batch, state, membership: Membership::alone(), logits }
    }

    /// Samples a token; the same one each time.
    ///
    /// # Panics
    /// Never with logits that are numbers.
    pub fn token_id(&self) -> u32 {
        let Self { graph, batch, state, membership, logits } = self;
        let arguments = [logits.clone()]; // [1, vocab]
        let step = Step { batch, state, membership, sampled: 0, arguments: &arguments };
        let outputs = executor::run(graph, &[], &step).expect("samplers run on any logits");
        sampled_token(&outputs).expect("samplers answer a token and its logprob").token_id
    }
}
