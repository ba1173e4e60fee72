//! Root-mean-square normalisation (Zhang and Sennrich, 2019).
//!
//! Door: [`RmsNorm`]. Every rank has the whole weight.

use super::WeightScope;
use crate::graph::{Graph, GraphError, Partition, Value, WeightSpec};

/// `y = x / sqrt(mean(x²) + eps) · weight`, as `LlamaRMSNorm`.
#[derive(Debug, Clone)]
pub(crate) struct RmsNorm {
    weight: WeightSpec,
    eps: f32,
}

impl RmsNorm {
    /// The weight `weight` of `scope`, of `size` elements.
    pub(crate) fn new(scope: &WeightScope, size: usize, eps: f32) -> Self {
        Self { weight: scope.weight("weight", &[size], Partition::Replicated), eps }
    }

    /// x `[.., size]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let weight = graph.weight(&self.weight); // [size]
        graph.rms_norm(x, weight, self.eps) // as x
    }
}
