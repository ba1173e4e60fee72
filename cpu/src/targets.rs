//! The report about prompt tokens (targets): their log-probabilities and, if requested, the best tokens at their
//! positions.

use std::sync::Arc;

use backend::{PromptTargets, PromptToken};
use candle_core::Tensor;
use model::graph::{Graph, GraphError};
use model::sampling::{TargetReport, target_graph};
use rayon::prelude::*;

use super::executor;
use super::step::Step;
use super::{host, top_tokens};
use crate::error::CpuError;

/// At most this many prompt tokens have their logits computed together. This limits the memory of the logits, whose
/// rows have 100,000 values or more in models with large vocabularies.
const TARGETS_PER_PASS: usize = 64;

/// The graphs that compute reports from logits, without and with top tokens.
#[derive(Debug)]
pub(super) struct Targets {
    logprobs: Arc<Graph>,
    top_tokens: Arc<Graph>,
}

/// Targets whose logits are computed together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) token_indices: &'a [i32],
    token_ids: &'a [i32],
    top_n: &'a [i32],
}

/// Returns the targets of a step, pass by pass.
pub(super) fn passes(targets: &PromptTargets) -> impl Iterator<Item = Pass<'_>> {
    let PromptTargets { token_indices, token_ids, top_n } = targets;
    let chunks = token_indices.chunks(TARGETS_PER_PASS).zip(token_ids.chunks(TARGETS_PER_PASS));
    let chunks = chunks.zip(top_n.chunks(TARGETS_PER_PASS));
    chunks.map(|((token_indices, token_ids), top_n)| Pass { token_indices, token_ids, top_n })
}

impl Targets {
    /// Returns the graphs for a vocabulary of `vocab_size` tokens.
    ///
    /// # Errors
    /// When a graph cannot be built.
    pub(super) fn new(vocab_size: usize) -> Result<Self, GraphError> {
        let graph = |report| target_graph(vocab_size, report);
        Ok(Self { logprobs: graph(TargetReport::Logprobs)?, top_tokens: graph(TargetReport::TopTokens)? })
    }

    /// Returns the reports of a pass from its logits `[rows, vocab]`. If no target requests top tokens, all rows are
    /// computed together; otherwise each row is computed alone, because each has its own number of top tokens. Both
    /// ways give the same bits.
    ///
    /// # Errors
    /// When an operation fails.
    pub(super) fn report(
        &self,
        pass: &Pass<'_>,
        logits: &Tensor,
        step: &Step<'_>,
    ) -> Result<Vec<PromptToken>, CpuError> {
        if pass.top_n.iter().all(|n| *n == 0) {
            let arguments = [logits.clone(), host::tensor(pass.token_ids.to_vec())?];
            let outputs = executor::run(&self.logprobs, &[], &Step { arguments: &arguments, ..*step })?; // [rows]
            let logprobs = host::View::new(&outputs[0])?.f32().to_vec();
            return Ok(logprobs.into_iter().map(|logprob| PromptToken { logprob, top_tokens: Vec::new() }).collect());
        }
        let report = |row: usize| {
            let number = |number: i32| host::tensor(vec![number]);
            let arguments = [logits.narrow(0, row, 1)?, number(pass.token_ids[row])?, number(pass.top_n[row])?];
            let outputs = executor::run(&self.top_tokens, &[], &Step { arguments: &arguments, ..*step })?;
            let logprob = host::View::new(&outputs[0])?.f32()[0];
            Ok(PromptToken { logprob, top_tokens: top_tokens(&outputs[1..])? })
        };
        (0..pass.token_ids.len()).into_par_iter().map(report).collect()
    }
}
