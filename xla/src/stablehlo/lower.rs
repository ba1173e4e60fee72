//! Lowers a graph to StableHLO, operation by operation, for the sizes of one program.
//!
//! Entry point: [`Lowering`], which holds the values that operations read besides their operands, such as the step's
//! rows and the states. The match over operations has no wildcard arm, so the compiler finds an operation that is
//! missing.

use std::collections::HashMap;

use model::graph::{
    AttentionSpec, Binary, DType, Dim, Extent, Graph, Input, Node, Op, Shape, StateId, TOKEN_HISTORY, Unary, ValuesIn,
};
use model::sampling;
use proto::MAX_HELD_BACK_TOKENS;

use super::emitter::{Emitter, Reduction};
use super::inputs::{RowInputs, SampledInputs, Sizes};
use super::kv_cache::{self, Cache, CachedValues};
use super::tensor::{Tensor, Type};
use super::{activation, attention, experts, history, model_ops, selection, state, threefry, token_inputs};
use crate::step_input::SampledColumn;
use crate::token_input::TokenInput;

/// The state of lowering a graph.
pub(crate) struct Lowering {
    pub(crate) emitter: Emitter,
    pub(crate) sizes: Sizes,
    /// The weights by name.
    pub(crate) weights: HashMap<String, Tensor>,
    /// The rows as a decoder reads them; `None` in other programs.
    pub(crate) rows: Option<RowInputs>,
    /// The rows as a sampler reads them; `None` in other programs.
    pub(crate) sampled: Option<SampledInputs>,
    /// The states of the graph, by name; see [`state_type`](super::state_type). While operations are added, the entry
    /// of a state of slots is only the part that belongs to the rows, `[rows, ..]`.
    pub(crate) states: HashMap<String, Tensor>,
}

impl Lowering {
    /// Adds the operations of `graph`, applied to `arguments`, and returns its outputs.
    pub(crate) fn lower(&mut self, graph: &Graph, arguments: &[Tensor]) -> Vec<Tensor> {
        let mut values: Vec<Tensor> = Vec::with_capacity(graph.nodes().len());
        let slots = self.read_slots(graph);
        for node in graph.nodes() {
            let operands: Vec<Tensor> = node.operands.iter().map(|value| values[value.index()].clone()).collect();
            values.push(self.lower_node((graph, node), &operands, arguments));
        }
        self.write_slots(slots);
        graph.outputs().iter().map(|output| values[output.index()].clone()).collect()
    }

    /// Replaces each state of slots with its part that belongs to the rows, and returns the whole states, by name.
    fn read_slots(&mut self, graph: &Graph) -> Vec<(String, Tensor)> {
        let specs = graph.states().iter().filter(|spec| spec.extent == Extent::Slot);
        let read = specs.map(|spec| {
            let rows = self.rows.as_ref().expect("decoders have rows");
            let kept = state::rows_of_slots(&mut self.emitter, &self.states[&spec.name], rows); // [rows, ..]
            let slots = self.states.insert(spec.name.clone(), kept).expect("the program has the graph's states");
            (spec.name.clone(), slots)
        });
        read.collect()
    }

    /// Restores the states of slots, with the rows' parts written into them.
    fn write_slots(&mut self, slots: Vec<(String, Tensor)>) {
        for (name, slots) in slots {
            let rows = self.rows.as_ref().expect("decoders have rows");
            let kept = &self.states[&name];
            let written = state::write_to_slots(&mut self.emitter, &slots, kept, rows); // [num_slots, ..]
            self.states.insert(name, written);
        }
    }

    /// Writes the keys and values of the step, and attends to them.
    fn attend(&mut self, graph: &Graph, spec: &AttentionSpec, operands: &[Tensor]) -> Tensor {
        let [q, k, rest @ ..] = operands else { unreachable!("there are queries and keys") };
        let (v, sinks) = match spec.values {
            ValuesIn::State(_) => (Some(&rest[0]), rest.get(1)),
            ValuesIn::Keys { .. } => (None, rest.first()),
        };
        let cache = self.cache(graph, spec, q);
        let rows = self.rows.as_ref().expect("decoders have rows");
        let batch = attention::Batch { rows, sizes: &self.sizes };
        let cache = kv_cache::write(&mut self.emitter, &cache, (k, v), batch);
        let arrays = std::iter::once(&cache.keys).chain(cache.values.array()).cloned();
        let names = spec.states().map(|id| graph.state_spec(id).name.clone());
        self.states.extend(names.zip(arrays));
        attention::attend(&mut self.emitter, (q, sinks), &cache, batch, spec)
    }

    /// Attends to keys and values that another layer has written.
    fn attend_shared(&mut self, graph: &Graph, spec: &AttentionSpec, q: &Tensor) -> Tensor {
        let cache = self.cache(graph, spec, q);
        let rows = self.rows.as_ref().expect("decoders have rows");
        let batch = attention::Batch { rows, sizes: &self.sizes };
        attention::attend(&mut self.emitter, (q, None), &cache, batch, spec)
    }

    /// Returns the arrays of the states that a layer with the queries q `[tokens, heads, head_dim]` attends to.
    fn cache(&self, graph: &Graph, spec: &AttentionSpec, q: &Tensor) -> Cache {
        let array = |id: StateId| self.states[&graph.state_spec(id).name].clone();
        let values = match spec.values {
            ValuesIn::State(id) => CachedValues::Array(array(id)),
            ValuesIn::Keys { value_dim } => CachedValues::InKeys { head_dim: q.dims()[2], value_dim },
        };
        Cache { keys: array(spec.keys), values }
    }

    #[expect(clippy::too_many_lines, reason = "an arm per operation, most of one line")]
    fn lower_node(&mut self, (graph, node): (&Graph, &Node), operands: &[Tensor], arguments: &[Tensor]) -> Tensor {
        let emitter = &mut self.emitter;
        match &node.op {
            Op::Input(input) => self.input(*input),
            Op::Argument(index) => arguments[*index].clone(),
            Op::Weight(spec) => self.weights[&spec.name].clone(),
            Op::Constant(value) => emitter.scalar(f64::from(*value), DType::F32),
            Op::CurrentTokens => {
                let rows = self.rows.as_ref().expect("decoders have rows");
                let [tokens, history] =
                    history::current_tokens(emitter, &self.states[TOKEN_HISTORY], rows, &self.sizes);
                self.states.insert(TOKEN_HISTORY.to_owned(), history);
                tokens
            }
            Op::Embedding if self.sizes.num_devices == 1 => {
                model_ops::embedding(emitter, &operands[0], &operands[1]) // [tokens, hidden]
            }
            Op::Embedding => {
                let rank = &self.rows.as_ref().expect("decoders have rows").rank;
                model_ops::embedding_part(emitter, &operands[0], &operands[1], rank) // [tokens, hidden]
            }
            Op::Linear => model_ops::linear(emitter, &operands[0], &operands[1], operands.get(2)),
            Op::HeadLinear => model_ops::head_linear(emitter, &operands[0], &operands[1]),
            Op::RmsNorm { eps, offset } => model_ops::rms_norm(emitter, operands, *eps, *offset),
            Op::LayerNorm { eps, offset } => model_ops::layer_norm(emitter, operands, *eps, *offset),
            Op::Rotary(spec) => model_ops::rotary(emitter, &operands[0], &operands[1], spec),
            Op::PagedAttention(spec) => self.attend(graph, spec, operands),
            Op::SharedAttention(spec) => self.attend_shared(graph, spec, &operands[0]),
            Op::RunningSum(state) => {
                let is_token = &self.rows.as_ref().expect("decoders have rows").is_token;
                let name = &graph.state_spec(*state).name;
                let [sums, after] = model_ops::running_sum(emitter, &operands[0], is_token, &self.states[name]);
                self.states.insert(name.clone(), after);
                sums
            }
            Op::ScaleByPosition(scale) => {
                model_ops::scale_by_position(emitter, &operands[0], &operands[1], *scale) // as x
            }
            Op::Xielu => activation::xielu(emitter, operands),
            Op::Activate(activation) => activation::activate(emitter, *activation, &operands[0]),
            Op::Gated(activation) => {
                let gate = activation::activate(emitter, *activation, &operands[0]);
                emitter.elementwise("multiply", &[&gate, &operands[1]])
            }
            Op::Route(spec) => experts::route(emitter, &operands[0], operands.get(1), *spec),
            Op::Experts(spec) => {
                let rank = &self.rows.as_ref().expect("decoders have rows").rank;
                experts::experts(emitter, operands, *spec, (rank, &self.sizes))
            }
            Op::Reshape => {
                let dims = self.dims(&node.shape);
                self.emitter.reshape(&operands[0], &dims)
            }
            Op::AllReduce => emitter.all_reduce(&operands[0], self.sizes.num_devices),
            Op::AllGather => emitter.all_gather(&operands[0], 1, self.sizes.num_devices),
            Op::AddBias => model_ops::add_bias(emitter, &operands[0], &operands[1]),
            Op::ScaleColumns => model_ops::scale_columns(emitter, &operands[0], &operands[1]),
            Op::Columns { first } => {
                emitter.slice(&operands[0], 1, *first..first + node.shape.last_size().unwrap_or(0))
            }
            Op::Join => {
                let last = operands[0].dims().len() - 1;
                emitter.concatenate(&[&operands[0], &operands[1]], last)
            }
            Op::Unary(function) => {
                let op = match function {
                    Unary::Negate => "negate",
                    Unary::Abs => "abs",
                    Unary::Exp => "exponential",
                    Unary::ReciprocalRoot => "rsqrt",
                };
                emitter.elementwise(op, &[&operands[0]])
            }
            Op::Binary(function) => {
                let op = match function {
                    Binary::Add => "add",
                    Binary::Subtract => "subtract",
                    Binary::Multiply => "multiply",
                    Binary::Divide => "divide",
                };
                let [a, b] = self.repeat_like(&node.shape, [&operands[0], &operands[1]]);
                self.emitter.elementwise(op, &[&a, &b])
            }
            Op::Less => {
                let [a, b] = self.repeat_like(&node.shape, [&operands[0], &operands[1]]);
                self.emitter.compare("LT", &a, &b)
            }
            Op::Select => {
                let [condition, a, b] = self.repeat_like(&node.shape, [&operands[0], &operands[1], &operands[2]]);
                self.emitter.select(&condition, &a, &b)
            }
            Op::SumColumns => emitter.reduce(Reduction::Sum, &operands[0], &[1]),
            Op::LogSoftmax => model_ops::log_softmax(emitter, &operands[0]),
            Op::ArgMax => selection::arg_max(emitter, &operands[0]),
            Op::GatherColumns => model_ops::gather_columns(emitter, &operands[0], &operands[1]),
            Op::KthLargest => selection::kth_largest(emitter, &operands[0], &operands[1]),
            Op::MassThreshold => selection::mass_threshold(emitter, &operands[0], &operands[1], &operands[2]),
            Op::TokenCounts { scope, vocab_size } => {
                let rows = self.sampled.as_ref().expect("samplers have rows");
                let Sizes { num_slots, max_total_tokens, .. } = self.sizes;
                let table = emitter.reshape(&self.states[TOKEN_HISTORY], &[num_slots, max_total_tokens]); // [slots, len]
                history::token_counts(emitter, &table, rows, (*scope, *vocab_size))
            }
            Op::HeldBack { vocab_size } => self.held_back(*vocab_size), // [rows, vocab]
            Op::AddLogitBias => {
                let rows = self.sampled.as_ref().expect("samplers have rows");
                token_inputs::add_logit_bias(emitter, &operands[0], rows.token_input(TokenInput::LogitBias))
            }
            Op::IsAllowed { vocab_size } => {
                let rows = self.sampled.as_ref().expect("samplers have rows");
                token_inputs::is_allowed(emitter, rows.token_input(TokenInput::Mask), *vocab_size)
            }
            Op::Uniform => threefry::uniform(emitter, &operands[0], &operands[1], &operands[2]),
            Op::ContextUniform { vocab_size } => {
                let rows = self.sampled.as_ref().expect("samplers have rows");
                let last_tokens = history::last_tokens(emitter, &self.states[TOKEN_HISTORY], rows, &self.sizes); // [rows]
                threefry::context_uniform(emitter, &last_tokens, *vocab_size) // [rows, vocab]
            }
            Op::InverseCdf => selection::inverse_cdf(emitter, &operands[0], &operands[1]),
            Op::TopTokens => selection::top_tokens(emitter, &operands[0], &operands[1], self.sizes.top_tokens),
            Op::AppendToken => {
                let rows = self.sampled.as_ref().expect("samplers have rows");
                let history = history::append(emitter, &self.states[TOKEN_HISTORY], &operands[0], rows, &self.sizes);
                self.states.insert(TOKEN_HISTORY.to_owned(), history);
                operands[0].clone()
            }
        }
    }

    fn input(&mut self, input: Input) -> Tensor {
        match input {
            Input::TokenIds => self.rows.as_ref().expect("decoders have rows").token_ids.clone(),
            Input::Positions => {
                let positions = &self.rows.as_ref().expect("decoders have rows").positions;
                self.emitter.bitcast(positions, DType::U32)
            }
            Input::Sampling { name, dtype } => {
                let index = sampling::columns().position(|column| column.name == name);
                let parameter = SampledColumn::Parameter(index.expect("a graph reads columns of its samplers"));
                let rows = self.sampled.as_ref().expect("samplers have rows");
                let column = rows.column(&mut self.emitter, parameter);
                self.emitter.bitcast(&column, dtype)
            }
        }
    }

    /// Returns bools `[rows, vocab]`: true if the row's columns name the token as held back.
    fn held_back(&mut self, vocab_size: usize) -> Tensor {
        let rows = self.sampled.as_ref().expect("samplers have rows");
        let emitter = &mut self.emitter;
        let ids = emitter.iota(1, Type::new([self.sizes.rows, vocab_size], DType::I32)); // [rows, vocab]
        let is_one_of = (0..MAX_HELD_BACK_TOKENS).map(|index| {
            let token = rows.column(emitter, SampledColumn::HeldBack(index)); // [rows]
            let token = emitter.broadcast(&token, &[0], ids.dims()); // [rows, vocab]
            emitter.compare("EQ", &ids, &token) // [rows, vocab]
        });
        let is_one_of: Vec<Tensor> = is_one_of.collect();
        let [first, others @ ..] = is_one_of.as_slice() else { unreachable!("there is room for held-back tokens") };
        others.iter().fold(first.clone(), |any, one| self.emitter.elementwise("or", &[&any, one])) // [rows, vocab]
    }

    /// Returns the operands broadcast to `shape`. An operand has no dimension, the first of `shape`, or all of them.
    fn repeat_like<const N: usize>(&mut self, shape: &Shape, operands: [&Tensor; N]) -> [Tensor; N] {
        let dims = self.dims(shape);
        let leading: Vec<usize> = (0..dims.len()).collect();
        operands.map(|operand| self.emitter.broadcast(operand, &leading[..operand.dims().len()], &dims))
    }

    fn dims(&self, shape: &Shape) -> Vec<usize> {
        let size = |dim: &Dim| match dim {
            Dim::Fixed(size) => *size,
            Dim::Tokens => self.sizes.rows * self.sizes.tokens_per_row,
            Dim::Rows => self.sizes.rows,
            Dim::TopTokens => self.sizes.top_tokens,
        };
        shape.dims().iter().map(size).collect()
    }
}
