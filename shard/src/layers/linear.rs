//! Linear layers, and how the ranks of a model share them (Megatron style).
//!
//! Door: [`Linear`], made by [`Linear::column`], [`Linear::row`] or [`Linear::vocab`]. A column layer is followed by a row layer.

use super::WeightScope;
use crate::graph::{Graph, GraphError, Partition, Value, WeightSpec};

/// `y = x · Wᵀ`, maybe plus a bias.
#[derive(Debug, Clone)]
pub(crate) struct Linear {
    weight: WeightSpec,
    bias: Option<WeightSpec>,
}

/// Dimensions of a [`Linear`] layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinearSize {
    pub(crate) num_inputs: usize,
    pub(crate) num_outputs: usize,
    pub(crate) has_bias: bool,
}

impl Linear {
    /// Weights `weight` and maybe `bias` of `scope`, outputs split among the ranks: each rank goes on with its own part.
    pub(crate) fn column(scope: &WeightScope, size: LinearSize) -> Self {
        Self::new(scope, size, Partition::Column, Partition::Column)
    }

    /// Weights `weight` and maybe `bias` of `scope`, inputs split among the ranks: the results are summed over the
    /// ranks, then the bias is added. The input is what a [`Linear::column`] layer made.
    pub(crate) fn row(scope: &WeightScope, size: LinearSize) -> Self {
        Self::new(scope, size, Partition::Row, Partition::Replicated)
    }

    /// A layer with one token of the vocabulary per output, without bias.
    pub(crate) fn vocab(weight: WeightSpec) -> Self {
        Self { weight, bias: None }
    }

    fn new(scope: &WeightScope, size: LinearSize, weight: Partition, bias: Partition) -> Self {
        let LinearSize { num_inputs, num_outputs, has_bias } = size;
        Self {
            weight: scope.weight("weight", &[num_outputs, num_inputs], weight),
            bias: has_bias.then(|| scope.weight("bias", &[num_outputs], bias)),
        }
    }

    /// x `[n, in]` → `[n, out]`
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let weight = graph.weight(&self.weight); // [out, in]
        let bias = self.bias.as_ref().map(|bias| graph.weight(bias)); // [out]
        graph.linear(x, weight, bias) // [n, out]
    }
}
