//! What is reported of the tokens of a prompt, which nobody chooses.
//!
//! Door: [`target_graph`]. Nothing that steers the choice of a token applies here.

use std::sync::Arc;

use super::choice;
use crate::graph::{DType, Dim, Graph, GraphError, Shape};

/// How much is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetReport {
    /// The log-probability of each target.
    Logprobs,
    /// The best tokens in its place too.
    TopTokens,
}

/// A graph from logits `[rows, vocab]` (argument 0) and target ids `[rows]` (argument 1) to the targets' log-probabilities
/// `[rows]`. With top tokens also from their number `[rows]` (argument 2) to their ids and log-probabilities, both
/// `[rows, top_tokens]`.
pub fn target_graph(vocab_size: usize, report: TargetReport) -> Result<Arc<Graph>, GraphError> {
    let mut graph = Graph::default();
    let logits = graph.argument(0, Shape::new([Dim::Rows, Dim::Fixed(vocab_size)]), DType::F32); // [rows, vocab]
    let targets = graph.argument(1, Shape::new([Dim::Rows]), DType::I32); // [rows]
    let logprobs = graph.log_softmax(logits)?; // [rows, vocab]
    let mut outputs = vec![graph.gather_columns(logprobs, targets)?]; // [rows]
    if report == TargetReport::TopTokens {
        let n = graph.argument(2, Shape::new([Dim::Rows]), DType::I32); // [rows]
        outputs.extend(choice::top_tokens(&mut graph, logprobs, n)?); // [rows, top_tokens]
    }
    Ok(graph.finish(&outputs))
}
