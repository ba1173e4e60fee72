//! Counts the multiply-adds of a graph's linear layers and experts, and the bytes that they read.
//!
//! Entry points: [`Graph::multiply_adds`], [`Graph::sum_of_multiplied`].

use super::{Graph, Op, Value, WeightSpec};

impl Graph {
    /// Returns the multiply-adds, for each token or row that the graph is run for, of one rank's linear layers and of
    /// the experts that the token chooses, as if the rank had all of them. Other operations are not counted; the work
    /// of attention depends on the length of the context.
    pub fn multiply_adds(&self) -> u64 {
        self.sum_of_multiplied(|weight| weight.local_shape().iter().product::<usize>() as u64)
    }

    /// Adds up the sizes of one rank's weights that linear layers multiply and, of the experts that a token can choose,
    /// the share that it chooses.
    pub fn sum_of_multiplied(&self, size: impl Fn(&WeightSpec) -> u64) -> u64 {
        let weight_of = |value: &Value| match &self.node(*value).op {
            Op::Weight(spec) => Some(spec),
            _ => None,
        };
        let of_nodes = self.nodes().iter().map(|node| match (&node.op, node.operands.as_slice()) {
            (Op::Linear, [_, weight, ..]) => weight_of(weight).map_or(0, &size),
            (Op::Experts(spec), [_, _, gate, up, down, ..]) => {
                let matrices = [gate, up, down].into_iter().filter_map(weight_of);
                let of_expert = matrices.map(|matrix| size(matrix) / matrix.local_shape()[0] as u64);
                spec.num_chosen as u64 * of_expert.sum::<u64>()
            }
            _ => 0,
        });
        of_nodes.fold(0, u64::saturating_add)
    }

    /// True if a layer has experts, of which each token chooses some.
    pub fn has_experts(&self) -> bool {
        self.nodes().iter().any(|node| matches!(node.op, Op::Experts(_)))
    }
}

#[cfg(test)]
mod tests {
    use numbers::FloatType;

    use crate::graph::{
        Activation, ExpertsSpec, Graph, Input, Partition, RouterSpec, Source, Value, WeightSpec, Weighted,
    };

    fn weight(graph: &mut Graph, name: &str, shape: &[usize]) -> Value {
        let (name, shape, source) = (name.to_owned(), shape.to_vec(), Source::Whole);
        let (dtype, partition, rounding) = (FloatType::F32, Partition::Replicated, None);
        graph.weight(&WeightSpec { name, shape, dtype, partition, num_ranks: 1, num_copies: 1, source, rounding })
    }

    #[test]
    fn linear_layers_and_chosen_experts_multiply() {
        let mut graph = Graph::default();
        let ids = graph.input(Input::TokenIds);
        let table = weight(&mut graph, "table", &[9, 4]);
        let x = graph.embedding(table, ids).unwrap(); // [tokens, 4]
        let router = weight(&mut graph, "router", &[3, 4]);
        let scores = graph.linear(x, router, None).unwrap(); // [tokens, 3]
        let chosen = graph.route(scores, None, RouterSpec::softmax(2, true)).unwrap(); // [tokens, 3]
        let [gate, up] = ["gate", "up"].map(|name| weight(&mut graph, name, &[3, 5, 4]));
        let down = weight(&mut graph, "down", &[3, 4, 5]);
        let spec = ExpertsSpec { num_chosen: 2, gating: Activation::Silu.into(), weighted: Weighted::Output };
        let [wide, narrow] = [5, 4].map(|len| weight(&mut graph, &format!("bias of {len}"), &[3, len]));
        graph.experts([x, chosen], [gate, up, down], Some([wide, wide, narrow]), spec).unwrap(); // [tokens, 4]
        assert_eq!(graph.multiply_adds(), 3 * 4 + 2 * 3 * 5 * 4);
        // The router has 12 weights of 4 bytes, and experts have half a byte for each weight.
        let bytes = graph.sum_of_multiplied(|weight| if weight.name == "router" { 48 } else { 3 * 5 * 4 / 2 });
        assert_eq!(bytes, 48 + 2 * 3 * 5 * 4 / 2);
    }
}
