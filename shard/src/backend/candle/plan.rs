//! Operations of a graph that one kernel computes together.
//!
//! Door: [`Plan`]. The kernel answers the bits that they answer one after the other; what lies between them stays in the caches.

use std::collections::HashMap;

use crate::graph::{Activation, Graph, Op, Value};

/// What is computed together.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// By the index of the last operation.
    mlps: HashMap<usize, GatedMlp>,
    /// Whether each node is a part of one, and not its last; none where no node is.
    is_within: Vec<bool>,
}

/// `down(f(gate(x)) * up(x))`, without biases.
#[derive(Debug)]
pub(super) struct GatedMlp {
    pub(super) x: Value,
    /// Gate, up and down.
    pub(super) weights: [Value; 3],
    pub(super) activation: Activation,
    /// The operations before the last.
    within: [Value; 3],
}

impl Plan {
    /// Finds them in `graph`.
    pub(super) fn new(graph: &Graph) -> Self {
        let mut num_uses = vec![0; graph.nodes().len()];
        let uses = graph.nodes().iter().flat_map(|node| &node.operands).chain(graph.outputs());
        uses.for_each(|value| num_uses[value.index()] += 1);
        let found = (0..graph.nodes().len()).filter_map(|index| Some((index, GatedMlp::ending_at(graph, index)?)));
        let mlps: HashMap<usize, GatedMlp> =
            found.filter(|(_, mlp)| mlp.within.iter().all(|value| num_uses[value.index()] == 1)).collect();
        let mut is_within = vec![false; graph.nodes().len()];
        mlps.values().flat_map(|mlp| mlp.within).for_each(|value| is_within[value.index()] = true);
        Self { mlps, is_within }
    }

    /// Whether a node is computed with a later one.
    pub(super) fn is_within(&self, index: usize) -> bool {
        self.is_within.get(index).copied().unwrap_or_default()
    }

    /// The network whose last operation this is.
    pub(super) fn mlp(&self, index: usize) -> Option<&GatedMlp> {
        self.mlps.get(&index)
    }

    /// The nodes that are computed with this one, and itself.
    pub(super) fn computed_at(&self, index: usize) -> impl Iterator<Item = usize> {
        let within = self.mlp(index).map(|mlp| mlp.within.map(Value::index));
        within.into_iter().flatten().chain([index])
    }
}

impl GatedMlp {
    fn ending_at(graph: &Graph, index: usize) -> Option<Self> {
        let linear = |index: usize| match (&graph.nodes()[index].op, graph.nodes()[index].operands.as_slice()) {
            (Op::Linear, [x, weight]) => Some((*x, *weight)),
            _ => None,
        };
        let (between, down) = linear(index)?;
        let Op::Gated(activation) = graph.node(between).op else { return None };
        let [opened, raised] = graph.node(between).operands.as_slice().try_into().ok()?;
        let ((x, gate), (same_x, up)) = (linear(opened.index())?, linear(raised.index())?);
        let within = [opened, raised, between];
        (x == same_x).then_some(Self { x, weights: [gate, up, down], activation, within })
    }
}
