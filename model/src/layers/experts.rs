//! Mixture of experts (Shazeer et al., 2017): a router chooses a few of many feed-forward networks for each token.
//!
//! Entry point: [`Experts`]. Ranks split the experts: each rank sums the outputs of its own experts, and then the sums
//! of all ranks are added. A model may add a shared expert, a network that every token passes.

use numbers::FloatType;

use super::{Linear, LinearSize, Mlp, WeightScope};
use crate::graph::{
    Activation, Binary, ExpertsSpec, Gating, Graph, GraphError, Partition, RouterSpec, Section, Stride, Value,
    WeightSpec, Weighted,
};

/// Dimensions of [`Experts`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertsSize {
    pub(crate) hidden_size: usize,
    /// Intermediate size of each expert.
    pub(crate) intermediate_size: usize,
    pub(crate) num_experts: usize,
    pub(crate) gating: Gating,
}

/// The choice of experts, with the names of its weights in the scope of the mixture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouterForm {
    /// The linear layer whose outputs are the scores of the experts.
    pub(crate) name: &'static str,
    /// True if the matrix of the layer is f32, whatever the type of the model.
    pub(crate) is_f32: bool,
    pub(crate) spec: RouterSpec,
    /// The tensor, read as f32, that only changes which experts are chosen.
    pub(crate) bias: Option<ChoiceBias>,
    /// The factor of the weights of the chosen experts, a positive number.
    pub(crate) factor: f32,
    pub(crate) scales: Option<RouterScales>,
    /// The vector that the weight of an expert multiplies.
    pub(crate) weighted: Weighted,
}

/// Learned factors in the choice of experts, with the names of their tensors in the scope of the mixture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouterScales {
    /// The tensor `[hidden]` by which the router's input is multiplied, after it is normalised by its root mean square
    /// and divided by the square root of its size.
    pub(crate) input: &'static str,
    /// The number that is added to the mean of the input's squares.
    pub(crate) eps: f32,
    /// The tensor `[experts]` by which the weights of the chosen experts are multiplied.
    pub(crate) output: &'static str,
}

/// The name of the tensor of the biases of a choice.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChoiceBias {
    /// A tensor `[experts]`.
    Vector(&'static str),
    /// A tensor `[1, experts]`.
    Row(&'static str),
}

/// The names of the experts' weights.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ExpertNames {
    /// Expert 0 has the tensors `experts.0.gate.weight`, `experts.0.up.weight` and so on, with these names of gate, up
    /// and down.
    Each([&'static str; 3]),
    /// One tensor has the matrices `[in, out]` of all experts: `experts.gate_up_proj`, whose columns are in turn an
    /// output of gate and one of up, and `experts.down_proj`. All have biases, and the router has one too.
    Joined,
    /// One tensor has the matrices `[in, out]` of all experts: `experts.gate_up_proj`, whose columns are those of gate
    /// and then those of up, and `experts.down_proj`. There are no biases.
    Halves,
    /// One tensor has the matrices `[out, in]` of all experts. These are the names of the tensor whose rows are those
    /// of gate and then those of up, and of the tensor of down. There are no biases.
    Rows([&'static str; 2]),
    /// As in GGUF files: one tensor has the matrices `[out, in]` of all experts, `experts.gate_proj.weight`, and the
    /// same for `up_proj` and `down_proj`. If `has_biases`, all have biases, and the router has one too.
    Apart { has_biases: bool },
}

/// `Σ weight · expert(x)`, or `Σ expert(weight · x)`, over the chosen experts, plus `shared(x)` or
/// `sigmoid(gate(x)) · shared(x)` if there is a shared expert.
#[derive(Debug, Clone)]
pub(crate) struct Experts {
    gating: Gating,
    router: Router,
    gate: WeightSpec,
    up: WeightSpec,
    down: WeightSpec,
    /// The biases of gate, up and down.
    biases: Option<[WeightSpec; 3]>,
    shared: Option<SharedExpert>,
}

#[derive(Debug, Clone)]
struct Router {
    scores: Linear,
    spec: RouterSpec,
    bias: Option<WeightSpec>,
    factor: f32,
    scales: Option<Scales>,
    weighted: Weighted,
}

#[derive(Debug, Clone)]
struct Scales {
    eps: f32,
    /// `[hidden]`
    input: WeightSpec,
    /// `[experts]`
    output: WeightSpec,
}

#[derive(Debug, Clone)]
struct SharedExpert {
    gate: Option<Linear>,
    mlp: Mlp,
}

impl RouterForm {
    /// Returns the choice `spec` by the outputs of the layer `name`, without biases and factors. The weights multiply
    /// the outputs of the experts.
    pub(crate) fn new(name: &'static str, spec: RouterSpec) -> Self {
        Self { name, is_f32: false, spec, bias: None, factor: 1.0, scales: None, weighted: Weighted::Output }
    }

    /// As [`RouterForm::new`], with a softmax over the outputs of the layer.
    pub(crate) fn softmax(name: &'static str, num_chosen: usize, is_normalised: bool) -> Self {
        Self::new(name, RouterSpec::softmax(num_chosen, is_normalised))
    }
}

impl Router {
    fn new(scope: &WeightScope, form: &RouterForm, size: LinearSize) -> Self {
        let RouterForm { name, is_f32, spec, bias, factor, scales, weighted } = *form;
        let f32_scope = scope.with_dtype(FloatType::F32);
        let bias = bias.map(|bias| match bias {
            ChoiceBias::Vector(name) => f32_scope.weight(name, &[size.num_outputs], Partition::Replicated),
            ChoiceBias::Row(name) => f32_scope.weight(name, &[1, size.num_outputs], Partition::Replicated),
        });
        let scales = scales.map(|RouterScales { input, eps, output }| {
            let weight = |name: &str, size: usize| scope.weight(name, &[size], Partition::Replicated);
            Scales { eps, input: weight(input, size.num_inputs), output: weight(output, size.num_outputs) }
        });
        let scope = if is_f32 { &f32_scope } else { scope };
        Self { scores: Linear::whole(&scope.child(name), size), spec, bias, factor, scales, weighted }
    }

    /// x `[tokens, hidden]` → the weights of the experts, `[tokens, experts]`.
    fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let x = match &self.scales {
            Some(Scales { eps, input, .. }) => {
                let weight = graph.weight(input); // [hidden]
                let normed = graph.rms_norm(x, weight, *eps, 0.0)?; // [tokens, hidden]
                graph.scale(normed, (input.shape[0] as f32).powf(-0.5))? // [tokens, hidden]
            }
            None => x,
        };
        let scores = self.scores.apply(graph, x)?; // [tokens, experts]
        let bias = self.bias.as_ref().map(|bias| graph.weight(bias)); // [experts] or [1, experts]
        let mixture = graph.route(scores, bias, self.spec)?; // [tokens, experts]
        let mixture = graph.scale(mixture, self.factor)?; // [tokens, experts]
        let Some(Scales { output, .. }) = &self.scales else { return Ok(mixture) };
        let output = graph.weight(output); // [experts]
        graph.scale_columns(mixture, output) // [tokens, experts]
    }
}

impl Experts {
    /// Returns a mixture of the networks in `scope`, with a router in `scope`.
    pub(crate) fn new(scope: &WeightScope, names: ExpertNames, router: &RouterForm, size: &ExpertsSize) -> Self {
        let ExpertsSize { hidden_size, intermediate_size, num_experts, gating } = *size;
        let experts = scope.child("experts");
        let [inward, outward] = [[intermediate_size, hidden_size], [hidden_size, intermediate_size]];
        let ([gate, up, down], biases) = match names {
            ExpertNames::Each(names) => {
                let stack = |(name, shape): (&str, [usize; 2])| {
                    experts.stack(&format!("{name}.weight"), num_experts, &shape, Partition::Column)
                };
                let [gate, up, down] = names;
                ([(gate, inward), (up, inward), (down, outward)].map(stack), None)
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
                (matrices, (!is_halves).then_some(biases))
            }
            ExpertNames::Rows([gate_up, down]) => {
                let half = |first| scope.section(Section { num_groups: num_experts, group_rows: 2, first });
                let shape = |[outputs, inputs]: [usize; 2]| [num_experts, outputs, inputs];
                let [gate, up] = [0, 1].map(|first| half(first).weight(gate_up, &shape(inward), Partition::Column));
                let down = scope.weight(down, &shape(outward), Partition::Column);
                ([gate, up, down], None)
            }
            ExpertNames::Apart { has_biases } => {
                let all = [("gate_proj", inward), ("up_proj", inward), ("down_proj", outward)];
                let matrices = all.map(|(name, [outputs, inputs])| {
                    experts.child(name).weight("weight", &[num_experts, outputs, inputs], Partition::Column)
                });
                let biases = all.map(|(name, [outputs, _])| {
                    experts.child(name).weight("bias", &[num_experts, outputs], Partition::Column)
                });
                (matrices, has_biases.then_some(biases))
            }
        };
        let router_size = LinearSize { num_inputs: hidden_size, num_outputs: num_experts, has_bias: biases.is_some() };
        let router = Router::new(scope, router, router_size);
        Self { gating, router, gate, up, down, biases, shared: None }
    }

    /// Returns the mixture with a shared expert, whose output may be multiplied by the sigmoid of the output of `gate`.
    pub(crate) fn with_shared(self, mlp: Mlp, gate: Option<Linear>) -> Self {
        Self { shared: Some(SharedExpert { gate, mlp }), ..self }
    }

    /// x `[tokens, hidden]` → the same shape. The router reads `for_router`, which may be x or another value of that
    /// shape.
    pub(crate) fn apply(&self, graph: &mut Graph, [x, for_router]: [Value; 2]) -> Result<Value, GraphError> {
        let mixture = self.router.apply(graph, for_router)?; // [tokens, experts]
        let [gate, up, down] = [&self.gate, &self.up, &self.down].map(|spec| graph.weight(spec)); // [experts, ..]
        let biases = self.biases.as_ref().map(|biases| biases.each_ref().map(|spec| graph.weight(spec))); // [experts, ..]
        let spec = ExpertsSpec {
            num_chosen: self.router.spec.num_chosen,
            gating: self.gating,
            weighted: self.router.weighted,
        };
        let part = graph.experts([x, mixture], [gate, up, down], biases, spec)?; // [tokens, hidden]
        let sum = if self.gate.num_ranks == 1 { part } else { graph.all_reduce(part)? }; // [tokens, hidden]
        let Some(shared) = &self.shared else { return Ok(sum) };
        let shared = shared.apply(graph, x)?; // [tokens, hidden]
        graph.add(sum, shared) // [tokens, hidden]
    }
}

impl SharedExpert {
    /// x `[tokens, hidden]` → the same shape.
    fn apply(&self, graph: &mut Graph, x: Value) -> Result<Value, GraphError> {
        let Some(gate) = &self.gate else { return self.mlp.apply(graph, x) };
        let openness = gate.apply(graph, x)?; // [tokens, 1]
        let openness = graph.activate(Activation::Sigmoid, openness)?; // [tokens, 1]
        let openness = graph.reshape(openness, &[])?; // [tokens]
        let made = self.mlp.apply(graph, x)?; // [tokens, hidden]
        graph.binary(Binary::Multiply, made, openness) // [tokens, hidden]
    }
}
