//! Runs a graph: one operation after the other, each value dropped after its last use.
//!
//! Entry points: [`Program`], a graph with its weights, and [`run`] for graphs without weights. The match over
//! operations has no default arm, so the compiler reports each operation of `graph/` that is missing here.

use std::collections::HashMap;
use std::sync::Arc;

use backend::{BatchRow, SampledRow};
use candle_core::{Device, Tensor};
use kernels::linear::PackedWeight;
use model::graph::{Graph, Input, Op, Value};
use model::sampling::Number;

use super::loader::Weight;
use super::plan::Plan;
use super::step::Step;
use super::{elementwise, experts, host, model_ops, sampling_ops};
use crate::error::CpuError;

/// A graph and its weights, ready to run.
#[derive(Debug)]
pub(super) struct Program {
    graph: Arc<Graph>,
    plan: Plan,
    /// One per node; `None` if the node is not a weight.
    weights: Vec<Option<Weight>>,
}

/// The values of a run. Each value is kept until its last use.
pub(super) struct Values {
    held: Vec<Option<Weight>>,
}

impl Program {
    /// Returns the program of `graph`; `weights` contains the graph's weights by name.
    pub(super) fn new(graph: &Arc<Graph>, weights: &HashMap<String, Weight>) -> Self {
        let weight = |op: &Op| {
            if let Op::Weight(spec) = op { weights.get(&spec.name).cloned() } else { None }
        };
        let weights = graph.nodes().iter().map(|node| weight(&node.op)).collect();
        Self { graph: Arc::clone(graph), plan: Plan::new(graph), weights }
    }

    /// The graph.
    pub(super) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Runs the graph and returns its outputs.
    pub(super) fn run(&self, step: &Step<'_>) -> Result<Vec<Tensor>, CpuError> {
        run_plan(&self.graph, &self.plan, &self.weights, step)
    }
}

/// Runs `graph` without a plan and returns its outputs. `weights` contains, by node index, the values that are known
/// already; it may be empty.
pub(super) fn run(graph: &Graph, weights: &[Option<Weight>], step: &Step<'_>) -> Result<Vec<Tensor>, CpuError> {
    run_plan(graph, &Plan::default(), weights, step)
}

fn run_plan(graph: &Graph, plan: &Plan, weights: &[Option<Weight>], step: &Step<'_>) -> Result<Vec<Tensor>, CpuError> {
    let mut values = Values { held: vec![None; graph.nodes().len()] };
    for index in (0..graph.nodes().len()).filter(|index| !plan.is_within(*index)) {
        let known = weights.get(index).and_then(Option::as_ref);
        let computed = match (known, plan.mlp(index), plan.siblings(index)) {
            (Some(weight), ..) => vec![(index, weight.clone())],
            (None, Some(mlp), _) => {
                let weights = mlp.weights.map(|weight| values.packed(weight));
                let y = model_ops::gated_mlp(values.tensor(mlp.x), weights, mlp.activation)?;
                vec![(index, Weight::Tensor(y))]
            }
            (None, None, Some(layers)) => linear_each(graph, layers, &values)?,
            (None, None, None) => vec![(index, Weight::Tensor(compute(graph, index, &values, step)?))],
        };
        step.pulse.advance();
        computed.into_iter().for_each(|(index, value)| values.held[index] = Some(value));
        let last_uses = plan.computed_at(index).flat_map(|index| &graph.last_uses()[index]);
        last_uses.for_each(|value| values.held[value.index()] = None);
    }
    Ok(graph.outputs().iter().map(|output| values.tensor(*output).clone()).collect())
}

impl Values {
    /// Returns a value that is a tensor.
    pub(super) fn tensor(&self, value: Value) -> &Tensor {
        match self.weight(value) {
            Weight::Tensor(tensor) => tensor,
            Weight::Packed(_) | Weight::Experts(_) => unreachable!("packed weights are not read as tensors"),
        }
    }

    /// Returns a value that may be a packed weight.
    pub(super) fn weight(&self, value: Value) -> &Weight {
        self.held[value.index()].as_ref().expect("values are kept until their last use")
    }

    /// Returns the weight of a linear layer.
    pub(super) fn packed(&self, value: Value) -> &PackedWeight {
        match self.weight(value) {
            Weight::Packed(packed) => packed,
            Weight::Tensor(_) | Weight::Experts(_) => unreachable!("weights of linear layers are packed"),
        }
    }

    /// Returns one matrix of each expert, or of each head.
    pub(super) fn experts(&self, value: Value) -> &[PackedWeight] {
        match self.weight(value) {
            Weight::Experts(matrices) => matrices,
            Weight::Tensor(_) | Weight::Packed(_) => unreachable!("weights of experts are packed one by one"),
        }
    }
}

impl<'a> Step<'a> {
    /// Returns the row for which a sampler runs.
    pub(super) fn sampled_row(&self) -> (&'a SampledRow, &'a BatchRow) {
        let sampled = &self.batch.sampled[self.sampled];
        (sampled, &self.batch.rows[sampled.row])
    }

    fn input(&self, input: Input) -> candle_core::Result<Tensor> {
        match input {
            Input::TokenIds => host::tensor(self.batch.token_ids.clone()),
            Input::Positions => host::tensor(self.batch.positions.clone()),
            Input::Sampling { name, dtype: _ } => match self.batch.sampling_inputs().column(name)[self.sampled] {
                Number::F32(number) => host::tensor(vec![number]),
                Number::I32(number) => host::tensor(vec![number]),
                Number::U32(number) => host::tensor(vec![number]),
            },
        }
    }
}

/// Computes linear layers that have the same input. `layers` contains the indices of their nodes.
fn linear_each(graph: &Graph, layers: &[usize], values: &Values) -> Result<Vec<(usize, Weight)>, CpuError> {
    let operands = |index: &usize| graph.nodes()[*index].operands.as_slice();
    let x = values.tensor(operands(&layers[0])[0]);
    let parameters = layers.iter().map(|index| {
        let bias = operands(index).get(2).map(|bias| values.tensor(*bias));
        (values.packed(operands(index)[1]), bias)
    });
    let computed = model_ops::linear_each(x, parameters)?;
    Ok(layers.iter().copied().zip(computed.into_iter().map(Weight::Tensor)).collect())
}

fn compute(graph: &Graph, index: usize, values: &Values, step: &Step<'_>) -> Result<Tensor, CpuError> {
    let node = &graph.nodes()[index];
    let operand = |position: usize| values.tensor(node.operands[position]);
    let optional = |position: usize| node.operands.get(position).map(|value| values.tensor(*value));
    Ok(match &node.op {
        Op::Input(input) => step.input(*input)?,
        Op::Argument(index) => step.arguments[*index].clone(),
        Op::Weight(spec) => unreachable!("weight {} was loaded", spec.name),
        Op::Constant(value) => Tensor::new(*value, &Device::Cpu)?,
        Op::CurrentTokens => host::tensor(step.state.history.current_tokens(step.batch))?, // [tokens]
        Op::Embedding => {
            let rank = step.membership.rank();
            model_ops::embedding(values.weight(node.operands[0]), operand(1), rank)?
        }
        Op::Linear => model_ops::linear(operand(0), values.packed(node.operands[1]), optional(2))?,
        Op::HeadLinear => model_ops::head_linear(operand(0), values.experts(node.operands[1]))?,
        Op::RmsNorm { eps, offset } => model_ops::rms_norm(operand(0), optional(1), *eps, *offset)?,
        Op::LayerNorm { eps, offset } => model_ops::layer_norm(operand(0), [1, 2].map(optional), *eps, *offset)?,
        Op::Rotary(spec) => model_ops::rotary(operand(0), operand(1), step.state.rotary_table(spec))?,
        Op::PagedAttention(spec) => {
            let rest: Vec<&Tensor> = node.operands[2..].iter().map(|value| values.tensor(*value)).collect();
            model_ops::paged_attention([operand(0), operand(1)], &rest, spec, step)?
        }
        Op::SharedAttention(spec) => {
            let cached = [graph.state_spec(spec.keys).shape[0], node.shape.last_size().unwrap_or(0)];
            model_ops::attend((operand(0), None), (cached, None), spec, step)?
        }
        Op::RunningSum(state) => model_ops::running_sum(operand(0), *state, step)?,
        Op::ScaleByPosition(scale) => elementwise::scale_by_position(operand(0), operand(1), *scale)?,
        Op::Xielu => elementwise::xielu(operand(0), [1, 2, 3, 4].map(operand))?,
        Op::Activate(activation) => model_ops::activate(*activation, operand(0))?,
        Op::Gated(activation) => model_ops::gated(*activation, operand(0), operand(1))?,
        Op::Route(spec) => experts::route(operand(0), optional(1), *spec)?,
        Op::Experts(spec) => {
            let matrices = [2, 3, 4].map(|position: usize| values.experts(node.operands[position]));
            let biases = (node.operands.len() > 5).then(|| [5, 6, 7].map(operand));
            let networks = experts::Networks::new(matrices, biases, *spec)?;
            experts::experts([operand(0), operand(1)], &networks, step.membership.rank())?
        }
        Op::Reshape => model_ops::reshape(operand(0), &node.shape)?,
        Op::AllReduce => model_ops::all_reduce(operand(0), step.membership)?,
        Op::AllGather => model_ops::all_gather(operand(0), step.membership)?,
        Op::AddBias => model_ops::add_bias(operand(0), operand(1))?,
        Op::ScaleColumns => operand(0).broadcast_mul(operand(1))?, // [n, m]
        Op::Columns { first } => model_ops::columns(operand(0), *first, &node.shape)?,
        Op::Join => model_ops::join(operand(0), operand(1))?,
        Op::Unary(function) => elementwise::unary(*function, operand(0))?,
        Op::Binary(function) => elementwise::binary(*function, operand(0), operand(1))?,
        Op::Less => elementwise::less(operand(0), operand(1))?,
        Op::Select => elementwise::select(operand(0), operand(1), operand(2))?,
        Op::SumColumns => sampling_ops::sum_columns(operand(0))?,
        Op::LogSoftmax => sampling_ops::log_softmax(operand(0))?,
        Op::ArgMax => sampling_ops::arg_max(operand(0))?,
        Op::GatherColumns => sampling_ops::gather_columns(operand(0), operand(1))?,
        Op::KthLargest => sampling_ops::kth_largest(operand(0), operand(1))?,
        Op::MassThreshold => sampling_ops::mass_threshold(operand(0), operand(1), operand(2))?,
        Op::TokenCounts { scope, vocab_size } => sampling_ops::token_counts(*scope, *vocab_size, step)?,
        Op::HeldBack { vocab_size } => sampling_ops::held_back(*vocab_size, step)?,
        Op::AddLogitBias => sampling_ops::add_logit_bias(operand(0), step)?,
        Op::IsAllowed { vocab_size } => sampling_ops::is_allowed(*vocab_size, step)?,
        Op::Uniform => sampling_ops::uniform([operand(0), operand(1), operand(2)])?,
        Op::ContextUniform { vocab_size } => sampling_ops::context_uniform(*vocab_size, step)?,
        Op::InverseCdf => sampling_ops::inverse_cdf(operand(0), operand(1))?,
        Op::TopTokens => sampling_ops::top_tokens(operand(0), operand(1))?,
        Op::AppendToken => {
            step.state.history.append(step.sampled_row().1, host::View::new(operand(0))?.i32()[0]);
            operand(0).clone()
        }
    })
}
