//! Linear layers, and their split among the ranks of a model (Megatron style).
//!
//! Entry point: [`Linear`], whose constructors determine the split. The inputs of a row layer ([`Linear::row`]) are
//! computed from the outputs of column layers ([`Linear::column`]).

use super::WeightScope;
use crate::graph::{Graph, GraphError, Partition, Value, WeightSpec};

/// A linear layer: `y = x · Wᵀ`, plus a bias if there is one.
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
    /// Returns the layer with the tensors `weight` and, if it has a bias, `bias` of `scope`. Ranks split the outputs,
    /// and each rank continues with its own outputs.
    pub(crate) fn column(scope: &WeightScope, size: LinearSize) -> Self {
        Self::new(scope, size, Partition::Column, Partition::Column)
    }

    /// As [`Linear::column`], for outputs that form `num_heads` heads. Each rank has whole heads; if there are fewer
    /// heads than ranks, neighbouring ranks have the same head. [`check_heads`](super::check_heads) says which numbers
    /// of ranks are possible.
    pub(crate) fn heads(scope: &WeightScope, size: LinearSize, num_heads: usize) -> Self {
        let num_copies = (scope.num_ranks() / num_heads).max(1);
        let Self { weight, bias } = Self::column(scope, size);
        let copied = |spec: WeightSpec| WeightSpec { num_copies, ..spec };
        Self { weight: copied(weight), bias: bias.map(copied) }
    }

    /// Returns the layer with the tensors `weight` and, if it has a bias, `bias` of `scope`. Ranks split the inputs:
    /// the results are summed over the ranks, then the bias is added. Each rank has computed its own part of the
    /// inputs.
    pub(crate) fn row(scope: &WeightScope, size: LinearSize) -> Self {
        Self::new(scope, size, Partition::Row, Partition::Replicated)
    }

    /// Returns the layer with the tensors `weight` and, if it has a bias, `bias` of `scope`. Every rank computes all
    /// outputs from the whole input.
    pub(crate) fn whole(scope: &WeightScope, size: LinearSize) -> Self {
        Self::new(scope, size, Partition::Replicated, Partition::Replicated)
    }

    /// Returns a layer without bias, with one output per token of the vocabulary. Ranks split the vocabulary, and every
    /// rank gets all outputs.
    pub(crate) fn vocab(weight: WeightSpec) -> Self {
        Self { weight, bias: None }
    }

    /// Returns this layer with a bias.
    pub(crate) fn with_bias(self, bias: WeightSpec) -> Self {
        Self { bias: Some(bias), ..self }
    }

    fn new(scope: &WeightScope, size: LinearSize, weight: Partition, bias: Partition) -> Self {
        let LinearSize { num_inputs, num_outputs, has_bias } = size;
        Self {
            weight: scope.weight("weight", &[num_outputs, num_inputs], weight),
            bias: has_bias.then(|| scope.weight("bias", &[num_outputs], bias)),
        }
    }

    /// Returns the number of outputs that one rank computes, padding included.
    pub(crate) fn num_local_outputs(&self) -> usize {
        self.weight.local_shape()[0]
    }

    /// x `[n, in]` → `[n, out]`
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let weight = graph.weight(&self.weight); // [out, in]
        let bias = self.bias.as_ref().map(|bias| graph.weight(bias)); // [out]
        let num_ranks = self.weight.num_ranks;
        match self.weight.partition {
            Partition::Row if num_ranks > 1 => {
                let summand = graph.linear(x, weight, None)?; // [n, out]
                let sum = graph.all_reduce(summand)?; // [n, out]
                bias.map_or(Ok(sum), |bias| graph.add_bias(sum, bias)) // [n, out]
            }
            Partition::Vocab if num_ranks > 1 => {
                let num_outputs = self.weight.shape[0];
                let part = graph.linear(x, weight, bias)?; // [n, padded out / num_ranks]
                let padded = graph.all_gather(part, num_ranks)?; // [n, padded out]
                // The padding is outside of the vocabulary, so it is cut off here.
                let is_whole = num_outputs.is_multiple_of(num_ranks);
                if is_whole { Ok(padded) } else { graph.columns(padded, 0..num_outputs) } // [n, out]
            }
            Partition::Replicated | Partition::Column | Partition::Row | Partition::Vocab => {
                graph.linear(x, weight, bias) // [n, out]; only this rank's outputs in a column layer
            }
        }
    }
}
