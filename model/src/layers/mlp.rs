//! Feed-forward networks: with a gate (Shazeer, 2020) as in Llama, and without a gate as in the first transformers.
//!
//! Entry points: [`GatedMlp`], [`PlainMlp`]. Ranks split the intermediate dimension. Features that are padding stay
//! zero, because their weights are zero and every activation of a feed-forward network maps zero to zero.

use super::{Linear, LinearSize, WeightScope};
use crate::graph::{Activation, Graph, GraphError, Value};

/// Dimensions of a network, and its activation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MlpSize {
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) has_bias: bool,
    pub(crate) activation: Activation,
}

/// A feed-forward network with a gate: `down(f(gate(x)) · up(x))`.
#[derive(Debug, Clone)]
pub(crate) struct GatedMlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

/// A feed-forward network without a gate: `down(f(up(x)))`.
#[derive(Debug, Clone)]
pub(crate) struct PlainMlp {
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl MlpSize {
    fn inward(&self) -> LinearSize {
        LinearSize { num_inputs: self.hidden_size, num_outputs: self.intermediate_size, has_bias: self.has_bias }
    }

    fn outward(&self) -> LinearSize {
        LinearSize { num_inputs: self.intermediate_size, num_outputs: self.hidden_size, has_bias: self.has_bias }
    }
}

impl GatedMlp {
    /// Returns a network with the weights of these scopes.
    pub(crate) fn new([gate, up, down]: [&WeightScope; 3], size: &MlpSize) -> Self {
        Self {
            gate: Linear::column(gate, size.inward()),
            up: Linear::column(up, size.inward()),
            down: Linear::row(down, size.outward()),
            activation: size.activation,
        }
    }

    /// x `[tokens, hidden]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let gate = self.gate.apply(graph, x)?; // [tokens, intermediate]
        let up = self.up.apply(graph, x)?; // [tokens, intermediate]
        let gated = graph.gated(self.activation, gate, up)?; // [tokens, intermediate]
        self.down.apply(graph, gated) // [tokens, hidden]
    }
}

impl PlainMlp {
    /// Returns a network with the weights of these scopes.
    pub(crate) fn new([up, down]: [&WeightScope; 2], size: &MlpSize) -> Self {
        let (up, down) = (Linear::column(up, size.inward()), Linear::row(down, size.outward()));
        Self { up, down, activation: size.activation }
    }

    /// x `[tokens, hidden]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let up = self.up.apply(graph, x)?; // [tokens, intermediate]
        let activated = graph.activate(self.activation, up)?; // [tokens, intermediate]
        self.down.apply(graph, activated) // [tokens, hidden]
    }
}
