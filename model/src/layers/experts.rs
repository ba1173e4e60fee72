//! Mixture of experts (Shazeer et al., 2017): a router chooses a few of many feed-forward networks for each token.
//!
//! Entry point: [`Experts`]. Ranks split the experts: each rank sums the outputs of its own experts, and then the sums
//! of all ranks are added. A model may add a shared expert, a network that every token passes.

use super::{GatedMlp, Linear, LinearSize, MlpSize, WeightScope};
use crate::graph::{
    Activation, Binary, ExpertsSpec, Gating, Graph, GraphError, Partition, RouterSpec, Stride, Value, WeightSpec,
};

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
    pub(crate) gating: Gating,
}

/// The names of the router and of the experts' weights.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ExpertNames {
    /// The router is `gate`. Expert 0 has the tensors `experts.0.gate.weight`, `experts.0.up.weight` and so on, with
    /// these names of gate, up and down.
    Each([&'static str; 3]),
    /// The router is `router`, with a bias. One tensor has the matrices `[in, out]` of all experts: `gate_up_proj`,
    /// whose columns are in turn an output of gate and one of up, and `down_proj`. All have biases.
    Joined,
    /// The router is `gate`. One tensor has the matrices `[in, out]` of all experts: `gate_up_proj`, whose columns are
    /// those of gate and then those of up, and `down_proj`. There are no biases.
    Halves,
}

/// `Σ weight · expert(x)` over the chosen experts, plus `sigmoid(gate(x)) · shared(x)` if there is a shared expert.
#[derive(Debug, Clone)]
pub(crate) struct Experts {
    size: ExpertsSize,
    router: Linear,
    gate: WeightSpec,
    up: WeightSpec,
    down: WeightSpec,
    /// The biases of gate, up and down.
    biases: Option<[WeightSpec; 3]>,
    shared: Option<SharedExpert>,
}

#[derive(Debug, Clone)]
struct SharedExpert {
    gate: Linear,
    mlp: GatedMlp,
}

impl Experts {
    /// Returns a mixture of the networks in `experts` of `scope`, with a router in `scope`.
    pub(crate) fn new(scope: &WeightScope, names: ExpertNames, size: &ExpertsSize) -> Self {
        let ExpertsSize { hidden_size, intermediate_size, num_experts, .. } = *size;
        let experts = scope.child("experts");
        let [inward, outward] = [[intermediate_size, hidden_size], [hidden_size, intermediate_size]];
        let (router, [gate, up, down], biases) = match names {
            ExpertNames::Each(names) => {
                let stack = |(name, shape): (&str, [usize; 2])| {
                    experts.stack(&format!("{name}.weight"), num_experts, &shape, Partition::Column)
                };
                let [gate, up, down] = names;
                ("gate", [(gate, inward), (up, inward), (down, outward)].map(stack), None)
            }
            ExpertNames::Joined | ExpertNames::Halves => {
                let is_halves = matches!(names, ExpertNames::Halves);
                let (second, step) = if is_halves { (intermediate_size, 1) } else { (1, 2) };
                let [gate, up] = [0, second].map(|first| ("gate_up_proj", inward, Stride { first, step, parts: 2 }));
                let all = [gate, up, ("down_proj", outward, Stride { first: 0, step: 1, parts: 1 })];
                let matrices = all.map(|(name, [outputs, inputs], columns)| {
                    experts.columns(name, &[num_experts, outputs, inputs], columns)
                });
                let biases = all.map(|(name, [outputs, _], columns)| {
                    experts.columns(&format!("{name}_bias"), &[num_experts, outputs], columns)
                });
                if is_halves { ("gate", matrices, None) } else { ("router", matrices, Some(biases)) }
            }
        };
        let router_size = LinearSize { num_inputs: hidden_size, num_outputs: num_experts, has_bias: biases.is_some() };
        let router = Linear::whole(&scope.child(router), router_size);
        Self { size: *size, router, gate, up, down, biases, shared: None }
    }

    /// Returns the mixture with the shared expert `shared_expert` of `scope`, which is `intermediate_size` wide, and
    /// its gate `shared_expert_gate`.
    pub(crate) fn with_shared(self, scope: &WeightScope, intermediate_size: usize) -> Self {
        let ExpertsSize { hidden_size, gating, .. } = self.size;
        let size = MlpSize { hidden_size, intermediate_size, has_bias: false, activation: gating.activation };
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
        let ExpertsSize { num_chosen, is_normalised, gating, .. } = self.size;
        let scores = self.router.apply(graph, x)?; // [tokens, experts]
        let mixture = graph.route(scores, RouterSpec { num_chosen, is_normalised })?; // [tokens, experts]
        let [gate, up, down] = [&self.gate, &self.up, &self.down].map(|spec| graph.weight(spec)); // [experts, ..]
        let biases = self.biases.as_ref().map(|biases| biases.each_ref().map(|spec| graph.weight(spec))); // [experts, ..]
        let spec = ExpertsSpec { num_chosen, gating };
        let part = graph.experts([x, mixture], [gate, up, down], biases, spec)?; // [tokens, hidden]
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
