//! A model or a sampler as data: a list of operations. The builder of an operation checks its operands.
//!
//! Entry points: [`Graph`] and its builders (in `model_ops` and `sampling_ops`), [`Value`], the handle of a node's
//! result, and [`Op`]. Layers, models and samplers build graphs, and backends execute them; this module uses none of
//! these. To add an operation, write its variant in `op` and its builder; the compiler then reports the matches that
//! lack it. [`quantized`] decides which weights of finished graphs are quantized.

mod arithmetic;
mod model_ops;
mod op;
mod print;
mod quantized;
mod sampling_ops;
mod shape;
mod state;
#[cfg(test)]
mod tests;
mod weight;

use std::sync::Arc;

pub use op::{
    Activation, AttentionSpec, Binary, CONTEXT_SEED_FACTOR, Clamp, ExpertGroups, ExpertsSpec, Gating, Input, Op,
    Pairing, PositionScale, RotarySpec, RouterSpec, Scoring, Slopes, TokenScope, Unary, ValuesIn, Weighted, Window,
};
pub use quantized::quantized;
pub use shape::{DType, Dim, GraphError, Shape};
pub use state::{Extent, Numbers, StateBytes, StateId, StateSpec, TOKEN_HISTORY};
pub use weight::{Partition, Quantization, Section, Source, Stride, WeightPart, WeightSpec};

/// The result of a node of one graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value(usize);

/// One operation, its operands, and the shape and type of its result.
#[derive(Debug, Clone)]
pub struct Node {
    pub op: Op,
    pub operands: Vec<Value>,
    pub shape: Shape,
    pub(crate) dtype: DType,
}

/// A list of operations, in an order in which they can be executed.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    outputs: Vec<Value>,
    states: Vec<StateSpec>,
    last_uses: Vec<Vec<Value>>,
}

impl Value {
    /// Returns the index of the node in [`Graph::nodes`].
    pub fn index(self) -> usize {
        self.0
    }
}

impl Graph {
    /// All nodes. Operands come before the nodes that use them.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the node whose result is `value`.
    pub fn node(&self, value: Value) -> &Node {
        &self.nodes[value.0]
    }

    /// The results of the graph.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// Returns, for each node of a finished graph, the operands whose last use it is and that are not outputs. An
    /// executor may drop them after the node.
    pub fn last_uses(&self) -> &[Vec<Value>] {
        &self.last_uses
    }

    /// All weights, each once.
    pub fn weights(&self) -> impl Iterator<Item = &WeightSpec> {
        self.nodes.iter().filter_map(|node| if let Op::Weight(spec) = &node.op { Some(spec) } else { None })
    }

    /// The declared states, each once.
    pub fn states(&self) -> &[StateSpec] {
        &self.states
    }

    /// Returns the state with this id.
    pub fn state_spec(&self, id: StateId) -> &StateSpec {
        &self.states[id.0]
    }

    /// Returns the finished graph, which computes `outputs`.
    pub fn finish(mut self, outputs: &[Value]) -> Arc<Self> {
        self.outputs = outputs.to_vec();
        self.last_uses = vec![Vec::new(); self.nodes.len()];
        let mut is_needed = vec![false; self.nodes.len()];
        outputs.iter().for_each(|value| is_needed[value.0] = true);
        for (index, node) in self.nodes.iter().enumerate().rev() {
            for operand in &node.operands {
                if !std::mem::replace(&mut is_needed[operand.0], true) {
                    self.last_uses[index].push(*operand);
                }
            }
        }
        Arc::new(self)
    }

    /// Returns the node of an input, which is data of the step. Adds the node if the graph lacks it.
    pub fn input(&mut self, input: Input) -> Value {
        let (shape, dtype) = input.signature();
        self.push_once(Op::Input(input), shape, dtype)
    }

    /// Returns the node of argument number `index` of the graph: a value that is computed outside of it. Adds the node
    /// if the graph lacks it.
    pub fn argument(&mut self, index: usize, shape: Shape, dtype: DType) -> Value {
        self.push_once(Op::Argument(index), shape, dtype)
    }

    /// Returns the node of this rank's part of a weight. Adds the node if the graph lacks it.
    pub fn weight(&mut self, spec: &WeightSpec) -> Value {
        self.push_once(Op::Weight(spec.clone()), Shape::fixed(&spec.local_shape()), DType::Float(spec.dtype))
    }

    /// Declares a state. Returns the existing id if the same state was declared before.
    pub fn state(&mut self, spec: &StateSpec) -> StateId {
        let known = self.states.iter().position(|known| known == spec);
        StateId(known.unwrap_or_else(|| {
            self.states.push(spec.clone());
            self.states.len() - 1
        }))
    }

    /// Returns the node of a scalar constant. Adds the node if the graph lacks it.
    pub fn constant(&mut self, value: f32) -> Value {
        self.push_once(Op::Constant(value), Shape::new([]), DType::F32)
    }

    fn push_once(&mut self, op: Op, shape: Shape, dtype: DType) -> Value {
        let known = self.nodes.iter().position(|node| node.op == op);
        known.map_or_else(|| self.push(op, Vec::new(), shape, dtype), Value)
    }

    fn push(&mut self, op: Op, operands: Vec<Value>, shape: Shape, dtype: DType) -> Value {
        self.nodes.push(Node { op, operands, shape, dtype });
        Value(self.nodes.len() - 1)
    }

    /// Returns an error if `condition` is false. The error names the operation, the shapes and types of its operands,
    /// and what the operation expects.
    fn require(&self, condition: bool, op: &Op, operands: &[Value], expected: &str) -> Result<(), GraphError> {
        if condition {
            return Ok(());
        }
        let operands: Vec<String> =
            operands.iter().map(|value| format!("{} {}", self.node(*value).shape, self.node(*value).dtype)).collect();
        Err(GraphError { op: op.name(), operands: operands.join(", "), expected: format!("expected {expected}") })
    }

    fn dims(&self, value: Value) -> &[Dim] {
        self.node(value).shape.dims()
    }

    fn dtype(&self, value: Value) -> DType {
        self.node(value).dtype
    }
}
