//! A model, or a sampler, as data: a list of operations whose shapes and types are checked when they are added.
//!
//! Doors: [`Graph`] and its builders (`model_ops` for models, `sampling_ops` for samplers), [`Value`], the handle of a
//! node's result, and [`Op`]. Layers and models build graphs, backends execute them; a graph knows neither. To add an
//! operation, write its variant in `op` and its builder; the compiler names each backend that must learn it. [`quantized`] says which
//! weights of finished graphs are rounded.

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

pub use model_ops::AttentionSpec;
pub use op::{
    Activation, Binary, CONTEXT_SEED_FACTOR, ExpertsSpec, Input, Op, Pairing, RotarySpec, RouterSpec, TokenScope, Unary,
};
pub use quantized::quantized;
pub use shape::{DType, Dim, GraphError, Shape};
pub use state::{Extent, Numbers, StateBytes, StateId, StateSpec, TOKEN_HISTORY};
pub use weight::{Partition, Quantization, Section, Source, WeightPart, WeightSpec};

/// The result of a node of one graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value(usize);

/// One operation, what it is applied to, and what its result looks like.
#[derive(Debug, Clone)]
pub struct Node {
    pub op: Op,
    pub operands: Vec<Value>,
    pub shape: Shape,
    pub(crate) dtype: DType,
}

/// Operations in the order in which they can be executed.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    outputs: Vec<Value>,
    states: Vec<StateSpec>,
    last_uses: Vec<Vec<Value>>,
}

impl Value {
    /// Position of the node in [`Graph::nodes`].
    pub fn index(self) -> usize {
        self.0
    }
}

impl Graph {
    /// All nodes; operands come before the nodes that use them.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node that makes `value`.
    pub fn node(&self, value: Value) -> &Node {
        &self.nodes[value.0]
    }

    /// What the graph computes.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// For each node, the values that no later node needs and that are no outputs: an executor may drop them after it.
    pub fn last_uses(&self) -> &[Vec<Value>] {
        &self.last_uses
    }

    /// Every weight once.
    pub fn weights(&self) -> impl Iterator<Item = &WeightSpec> {
        self.nodes.iter().filter_map(|node| if let Op::Weight(spec) = &node.op { Some(spec) } else { None })
    }

    /// The states that its operations read and write.
    pub fn states(&self) -> &[StateSpec] {
        &self.states
    }

    /// One of the states.
    pub fn state_spec(&self, id: StateId) -> &StateSpec {
        &self.states[id.0]
    }

    /// The graph that computes `outputs`. Nothing can be added to it.
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

    /// Data of the step.
    pub fn input(&mut self, input: Input) -> Value {
        let (shape, dtype) = input.signature();
        self.push_once(Op::Input(input), shape, dtype)
    }

    /// A value made by another graph.
    pub fn argument(&mut self, index: usize, shape: Shape, dtype: DType) -> Value {
        self.push_once(Op::Argument(index), shape, dtype)
    }

    /// This rank's part of a tensor of the checkpoint; the same one when it was asked for before.
    pub fn weight(&mut self, spec: &WeightSpec) -> Value {
        self.push_once(Op::Weight(spec.clone()), Shape::fixed(&spec.local_shape()), DType::Float(spec.dtype))
    }

    /// Declares a state; returns the known one when it was declared before.
    pub fn state(&mut self, spec: &StateSpec) -> StateId {
        let known = self.states.iter().position(|known| known == spec);
        StateId(known.unwrap_or_else(|| {
            self.states.push(spec.clone());
            self.states.len() - 1
        }))
    }

    /// A number.
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

    /// Ok when `condition` holds; otherwise the error that names the operation, what it was given and what it takes.
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
