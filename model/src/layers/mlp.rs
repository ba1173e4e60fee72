//! Feed-forward networks: with a gate (Shazeer, 2020) as in Llama, and without a gate as in the first transformers.
//!
//! Entry points: [`GatedMlp`], [`PlainMlp`]. Ranks split the intermediate dimension. Features that are padding add
//! nothing to the result, because their weights are zero.

use super::{Linear, LinearSize, WeightScope};
use crate::graph::{Activation, Graph, GraphError, Partition, Value, WeightSpec};

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
    activation: PlainActivation,
}

#[derive(Debug, Clone)]
enum PlainActivation {
    Fixed(Activation),
    /// xIELU with these parameters, in the order of [`Op::Xielu`](crate::graph::Op::Xielu).
    Xielu(Box<[WeightSpec; 4]>),
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
        Self { up, down, activation: PlainActivation::Fixed(size.activation) }
    }

    /// Returns this network with the activation xIELU, whose parameters are in `scope`.
    pub(crate) fn with_xielu(self, scope: &WeightScope) -> Self {
        let weight = |name: &str, shape: &[usize]| scope.weight(name, shape, Partition::Replicated);
        let alphas = ["alpha_p", "alpha_n"].map(|name| weight(name, &[1]));
        let fixed = ["beta", "eps"].map(|name| weight(name, &[]));
        let ([positive, negative], [beta, eps]) = (alphas, fixed);
        Self { activation: PlainActivation::Xielu(Box::new([positive, negative, beta, eps])), ..self }
    }

    /// x `[tokens, hidden]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let up = self.up.apply(graph, x)?; // [tokens, intermediate]
        let activated = match &self.activation {
            PlainActivation::Fixed(activation) => graph.activate(*activation, up)?, // [tokens, intermediate]
            PlainActivation::Xielu(parameters) => {
                let parameters = parameters.each_ref().map(|parameter| graph.weight(parameter)); // [1] or []
                graph.xielu(up, parameters)? // [tokens, intermediate]
            }
        };
        self.down.apply(graph, activated) // [tokens, hidden]
    }
}
