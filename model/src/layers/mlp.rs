//! Feed-forward networks: with a gate (Shazeer, 2020) as in Llama, and without a gate as in the first transformers.
//!
//! Entry point: [`Mlp`]. Ranks split the intermediate dimension. Features that are padding add nothing to the result,
//! because their weights are zero.

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

/// A feed-forward network: with a gate `down(f(gate(x)) · up(x))`, without one `down(f(up(x)))`.
#[derive(Debug, Clone)]
pub(crate) struct Mlp {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: MlpActivation,
}

#[derive(Debug, Clone)]
enum MlpActivation {
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

impl Mlp {
    /// Returns a network with a gate and the weights of these scopes.
    pub(crate) fn gated([gate, up, down]: [&WeightScope; 3], size: &MlpSize) -> Self {
        Self { gate: Some(Linear::column(gate, size.inward())), ..Self::plain([up, down], size) }
    }

    /// Returns a network without a gate and with the weights of these scopes.
    pub(crate) fn plain([up, down]: [&WeightScope; 2], size: &MlpSize) -> Self {
        let (up, down) = (Linear::column(up, size.inward()), Linear::row(down, size.outward()));
        Self { gate: None, up, down, activation: MlpActivation::Fixed(size.activation) }
    }

    /// Returns this network, which has no gate, with the activation xIELU, whose parameters are in `scope`.
    pub(crate) fn with_xielu(self, scope: &WeightScope) -> Self {
        let weight = |name: &str, shape: &[usize]| scope.weight(name, shape, Partition::Replicated);
        let alphas = ["alpha_p", "alpha_n"].map(|name| weight(name, &[1]));
        let fixed = ["beta", "eps"].map(|name| weight(name, &[]));
        let ([positive, negative], [beta, eps]) = (alphas, fixed);
        Self { activation: MlpActivation::Xielu(Box::new([positive, negative, beta, eps])), ..self }
    }

    /// x `[tokens, hidden]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let gate = self.gate.as_ref().map(|gate| gate.apply(graph, x)).transpose()?; // [tokens, intermediate]
        let up = self.up.apply(graph, x)?; // [tokens, intermediate]
        let inner = match (&self.activation, gate) {
            (MlpActivation::Fixed(activation), Some(gate)) => graph.gated(*activation, gate, up)?,
            (MlpActivation::Fixed(activation), None) => graph.activate(*activation, up)?,
            (MlpActivation::Xielu(parameters), _) => {
                let parameters = parameters.each_ref().map(|parameter| graph.weight(parameter)); // [1] or []
                graph.xielu(up, parameters)?
            }
        }; // [tokens, intermediate]
        self.down.apply(graph, inner) // [tokens, hidden]
    }
}
