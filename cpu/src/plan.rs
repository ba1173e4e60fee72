//! Operations of a graph that one kernel computes together.
//!
//! Entry point: [`Plan`]. Such a kernel returns the same bits as the operations one after the other. It is faster,
//! because intermediate values stay in the processor's caches or threads are woken less often.

use std::collections::HashMap;

use model::graph::{Activation, Graph, Op, Value};

/// The groups of operations that are computed together.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Gated feed-forward networks, by the index of the network's last operation.
    mlps: HashMap<usize, GatedMlp>,
    /// Indices of linear layers with the same input, in ascending order, by the index of the last of them.
    siblings: HashMap<usize, Vec<usize>>,
    /// True for each node that is in a group and is not the last node of the group. Empty in the default plan, which
    /// has no groups.
    is_within: Vec<bool>,
}

/// A gated feed-forward network, `down(f(gate(x)) * up(x))`, without biases.
#[derive(Debug)]
pub(super) struct GatedMlp {
    pub(super) x: Value,
    /// Gate, up and down.
    pub(super) weights: [Value; 3],
    pub(super) activation: Activation,
    /// The three operations before the last one: gate, up, and their product.
    within: [Value; 3],
}

impl Plan {
    /// Finds the groups in `graph`.
    pub(super) fn new(graph: &Graph) -> Self {
        let mut num_uses = vec![0; graph.nodes().len()];
        let uses = graph.nodes().iter().flat_map(|node| &node.operands).chain(graph.outputs());
        uses.for_each(|value| num_uses[value.index()] += 1);
        let found = (0..graph.nodes().len()).filter_map(|index| Some((index, GatedMlp::ending_at(graph, index)?)));
        let mlps: HashMap<usize, GatedMlp> =
            found.filter(|(_, mlp)| mlp.within.iter().all(|value| num_uses[value.index()] == 1)).collect();
        let mut is_within = vec![false; graph.nodes().len()];
        mlps.values().flat_map(|mlp| mlp.within).for_each(|value| is_within[value.index()] = true);
        let siblings = siblings(graph, |index| !is_within[index] && !mlps.contains_key(&index));
        for (last, layers) in &siblings {
            layers.iter().filter(|index| *index != last).for_each(|index| is_within[*index] = true);
        }
        Self { mlps, siblings, is_within }
    }

    /// True if a node is computed together with a later one.
    pub(super) fn is_within(&self, index: usize) -> bool {
        self.is_within.get(index).copied().unwrap_or_default()
    }

    /// Returns the gated network whose last operation is at `index`, if there is one.
    pub(super) fn mlp(&self, index: usize) -> Option<&GatedMlp> {
        self.mlps.get(&index)
    }

    /// Returns the linear layers that are computed together with the one at `index`, which is the last of them and is
    /// included; `None` if there is no such group.
    pub(super) fn siblings(&self, index: usize) -> Option<&[usize]> {
        self.siblings.get(&index).map(Vec::as_slice)
    }

    /// Returns the indices of the nodes that are computed when the plan reaches the node at `index`, which is included.
    pub(super) fn computed_at(&self, index: usize) -> impl Iterator<Item = usize> {
        let within = self.mlp(index).map(|mlp| mlp.within.map(Value::index));
        let siblings =
            self.siblings(index).unwrap_or_default().iter().copied().filter(move |sibling| *sibling != index);
        within.into_iter().flatten().chain(siblings).chain([index])
    }
}

/// Returns groups of two or more linear layers with the same input x, by the index of the last layer. Only layers for
/// which `is_free` returns true are grouped, and only if no operation needs one of them before the last is computed.
fn siblings(graph: &Graph, is_free: impl Fn(usize) -> bool) -> HashMap<usize, Vec<usize>> {
    let mut of_x: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut first_use = vec![usize::MAX; graph.nodes().len()];
    for (index, node) in graph.nodes().iter().enumerate() {
        for operand in &node.operands {
            first_use[operand.index()] = first_use[operand.index()].min(index);
        }
        if let (Op::Linear, [x, ..]) = (&node.op, node.operands.as_slice())
            && is_free(index)
        {
            of_x.entry(x.index()).or_default().push(index);
        }
    }
    let groups = of_x.into_values().filter_map(|layers| Some((*layers.last()?, layers)));
    groups.filter(|(last, layers)| layers.len() > 1 && layers.iter().all(|index| first_use[*index] > *last)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use model::graph::{DType, Dim, Partition, Shape, Source, WeightSpec};
    use numbers::FloatType;

    fn weight(graph: &mut Graph, name: &str, shape: [usize; 2]) -> Value {
        let (name, shape, source) = (name.to_owned(), shape.to_vec(), Source::Whole);
        let (dtype, partition, rounding) = (FloatType::Bf16, Partition::Replicated, None);
        graph.weight(&WeightSpec { name, shape, dtype, partition, num_ranks: 1, num_copies: 1, source, rounding })
    }

    /// Returns a graph with three layers `[8, 8]` of the same x, and the indices of these layers. A fourth layer reads
    /// the output of the first one; it comes before the third layer if `is_early`, otherwise after it.
    fn layers_of_one_x(is_early: bool) -> (Graph, Vec<usize>) {
        let mut graph = Graph::default();
        let x = graph.argument(0, Shape::new([Dim::Tokens, Dim::Fixed(8)]), DType::F32);
        let weights = ["a", "b", "c", "d"].map(|name| weight(&mut graph, name, [8, 8]));
        let mut layers = Vec::new();
        for (idx, weight) in weights[..3].iter().enumerate() {
            if is_early && idx == 2 {
                graph.linear(layers[0], weights[3], None).unwrap();
            }
            layers.push(graph.linear(x, *weight, None).unwrap());
        }
        if !is_early {
            graph.linear(layers[0], weights[3], None).unwrap();
        }
        (graph, layers.into_iter().map(Value::index).collect())
    }

    #[test]
    fn layers_of_one_x_are_computed_at_the_last() {
        let (graph, layers) = layers_of_one_x(false);
        let plan = Plan::new(&graph);
        assert_eq!(plan.siblings(layers[2]), Some(layers.as_slice()));
        assert_eq!(layers.iter().map(|index| plan.is_within(*index)).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(plan.computed_at(layers[2]).collect::<Vec<_>>(), layers);
    }

    #[test]
    fn a_layer_that_is_needed_before_the_last_keeps_them_apart() {
        let (graph, layers) = layers_of_one_x(true);
        let plan = Plan::new(&graph);
        assert!(layers.iter().all(|index| plan.siblings(*index).is_none() && !plan.is_within(*index)));
    }
}
