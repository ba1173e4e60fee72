//! Mixture of experts (Shazeer et al., 2017): a router chooses a few of many feed-forward networks for each token.
//!
//! Entry point: [`Experts`]. Ranks split the experts: each rank sums the outputs of its own experts, and then the sums
//! of all ranks are added. A model may add a shared expert, a network that every token passes.

use super::{GatedMlp, Linear, LinearSize, MlpSize, WeightScope};
use crate::graph::{Activation, Binary, ExpertsSpec, Graph, GraphError, Partition, RouterSpec, Value, WeightSpec};

/// Dimensions of [`Experts`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertsSize {
    pub(crate) hidden_size: usize,
    /// Intermediate size of each expert.
    pub(crate) intermediate_size: usize,
    pub(crate) num_experts: usize,
    /// Number of experts chosen for each token.
    pub(crate) num_chosen: usize,
    /// True if the weights of the chosen experts are scaled to a sum of 1.
    pub(crate) is_normalised: bool,
    pub(crate) activation: Activation,
}

/// `Σ weight · expert(x)` over the chosen experts, plus `sigmoid(gate(x)) · shared(x)` if there is a shared expert.
#[derive(Debug, Clone)]
pub(crate) struct Experts {
    size: ExpertsSize,
    router: Linear,
    gate: WeightSpec,
    up: WeightSpec,
    down: WeightSpec,
    shared: Option<SharedExpert>,
}

#[derive(Debug, Clone)]
struct SharedExpert {
    gate: Linear,
    mlp: GatedMlp,
}

impl Experts {
    /// Returns a mixture of the networks `experts.0`, `experts.1` … of `scope`, with the router `gate` of `scope`. The
    /// arguments `gate`, `up` and `down` are the names of the networks' matrices.
    pub(crate) fn new(scope: &WeightScope, [gate, up, down]: [&str; 3], size: &ExpertsSize) -> Self {
        let ExpertsSize { hidden_size, intermediate_size, num_experts, .. } = *size;
        let experts = scope.child("experts");
        let stack = |name: &str, shape: [usize; 2]| {
            experts.stack(&format!("{name}.weight"), num_experts, &shape, Partition::Column)
        };
        let router = LinearSize { num_inputs: hidden_size, num_outputs: num_experts, has_bias: false };
        Self {
            size: *size,
            router: Linear::whole(&scope.child("gate"), router),
            gate: stack(gate, [intermediate_size, hidden_size]),
            up: stack(up, [intermediate_size, hidden_size]),
            down: stack(down, [hidden_size, intermediate_size]),
            shared: None,
        }
    }

    /// Returns the mixture with the shared expert `shared_expert` of `scope`, which is `intermediate_size` wide, and
    /// its gate `shared_expert_gate`.
    pub(crate) fn with_shared(self, scope: &WeightScope, intermediate_size: usize) -> Self {
        let ExpertsSize { hidden_size, activation, .. } = self.size;
        let size = MlpSize { hidden_size, intermediate_size, has_bias: false, activation };
        let [gate, up, down] =
            ["gate_proj", "up_proj", "down_proj"].map(|name| scope.child("shared_expert").child(name));
        let one = LinearSize { num_inputs: hidden_size, num_outputs: 1, has_bias: false };
        let shared = SharedExpert {
            gate: Linear::whole(&scope.child("shared_expert_gate"), one),
            mlp: GatedMlp::new([&gate, &up, &down], &size),
        };
        Self { shared: Some(shared), ..self }
    }

    /// x `[tokens, hidden]` → the same shape.
    pub(crate) fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let ExpertsSize { num_chosen, is_normalised, activation, .. } = self.size;
        let scores = self.router.apply(graph, x)?; // [tokens, experts]
        let mixture = graph.route(scores, RouterSpec { num_chosen, is_normalised })?; // [tokens, experts]
        let [gate, up, down] = [&self.gate, &self.up, &self.down].map(|spec| graph.weight(spec)); // [experts, ..]
        let part = graph.experts([x, mixture], [gate, up, down], ExpertsSpec { num_chosen, activation })?; // [tokens, hidden]
        let sum = if self.gate.num_ranks == 1 { part } else { graph.all_reduce(part)? }; // [tokens, hidden]
        let Some(SharedExpert { gate, mlp }) = &self.shared else { return Ok(sum) };
        let openness = gate.apply(graph, x)?; // [tokens, 1]
        let openness = graph.activate(Activation::Sigmoid, openness)?; // [tokens, 1]
        let openness = graph.reshape(openness, &[])?; // [tokens]
        let shared = mlp.apply(graph, x)?; // [tokens, hidden]
        let shared = graph.binary(Binary::Multiply, shared, openness)?; // [tokens, hidden]
        graph.add(sum, shared) // [tokens, hidden]
    }
}
