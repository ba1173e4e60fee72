//! The output head, which computes logits from hidden states.
//!
//! Entry point: [`Head`]: a linear layer over the vocabulary, and the scaling and bounding of its outputs in some
//! models.

use super::Linear;
use crate::graph::{Graph, GraphError, Value};

/// The output head of a model: `bounded(multiplier · linear(x))`.
#[derive(Debug, Clone)]
pub struct Head {
    pub(crate) linear: Linear,
    /// The factor by which logits are multiplied.
    pub(crate) multiplier: f32,
    /// If set, logits become `cap · tanh(logit / cap)`.
    pub(crate) soft_cap: Option<f32>,
}

impl Head {
    /// x `[rows, hidden]` → `[rows, vocab]`, the same on every rank.
    pub fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let logits = self.linear.apply(graph, x)?; // [rows, vocab]
        let logits = graph.scale(logits, self.multiplier)?; // [rows, vocab]
        self.soft_cap.map_or(Ok(logits), |cap| graph.soft_cap(logits, cap)) // [rows, vocab]
    }
}
