//! The report about the tokens of a prompt, which are given and not chosen.
//!
//! Entry point: [`target_graph`]. The parameters that steer the choice of a token do not apply here.

use std::sync::Arc;

use super::choice;
use crate::graph::{DType, Dim, Graph, GraphError, Shape};

/// The content of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetReport {
    /// The log-probability of each target.
    Logprobs,
    /// The log-probability of each target, and the best tokens at its position.
    TopTokens,
}

/// Returns a graph from logits `[rows, vocab]` (argument 0) and target ids `[rows]` (argument 1) to the targets'
/// log-probabilities `[rows]`. With top tokens, argument 2 is their number per row, `[rows]`, and the graph also
/// returns their ids and log-probabilities, both `[rows, top_tokens]`.
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
