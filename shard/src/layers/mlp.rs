//! The gated feed-forward network of Llama and its relatives (Shazeer, 2020).
//!
//! Door: [`GatedMlp`]. Ranks split the intermediate dimension; features that pad it are zero: silu(0) · 0 is.

use super::{Linear, LinearSize, WeightScope};
use crate::graph::{Graph, GraphError, Value};

/// `down(silu(gate(x)) · up(x))`
#[derive(Debug, Clone)]
pub(crate) struct GatedMlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl GatedMlp {
    /// Layers `gate_proj`, `up_proj` and `down_proj` of `scope`.
    pub(crate) fn new(scope: &WeightScope, hidden_size: usize, intermediate_size: usize, has_bias: bool) -> Self {
        let inward = LinearSize { num_inputs: hidden_size, num_outputs: intermediate_size, has_bias };
        let outward = LinearSize { num_inputs: intermediate_size, num_outputs: hidden_size, has_bias };
        Self {
            gate: Linear::column(&scope.child("gate_proj"), inward),
            up: Linear::column(&scope.child("up_proj"), inward),
            down: Linear::row(&scope.child("down_proj"), outward),
        }
    }

    /// x `[tokens, hidden]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let gate = self.gate.apply(graph, x)?; // [tokens, intermediate]
        let up = self.up.apply(graph, x)?; // [tokens, intermediate]
        let gated = graph.silu_mul(gate, up)?; // [tokens, intermediate]
        self.down.apply(graph, gated) // [tokens, hidden]
    }
}
