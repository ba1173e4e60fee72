//! Counts the multiply-adds of a graph's linear layers and experts.
//!
//! Entry point: [`Graph::multiply_adds`].

use super::{Graph, Op, Value};

impl Graph {
    /// Returns the multiply-adds, for each token or row that the graph is run for, of one rank's linear layers and of
    /// the experts that the token chooses, as if the rank had all of them. Other operations are not counted; the work
    /// of attention depends on the length of the context.
    pub fn multiply_adds(&self) -> u64 {
        let shape_of = |value: &Value| match &self.node(*value).op {
            Op::Weight(spec) => spec.local_shape(),
            _ => vec![0],
        };
        let of_nodes = self.nodes().iter().map(|node| match (&node.op, node.operands.as_slice()) {
            (Op::Linear, [_, weight, ..]) => shape_of(weight).iter().product(),
            (Op::Experts(spec), [_, _, gate, up, down, ..]) => {
                let of_expert =
                    [gate, up, down].into_iter().map(|matrix| shape_of(matrix)[1..].iter().product::<usize>());
                spec.num_chosen * of_expert.sum::<usize>()
            }
            _ => 0,
        });
        of_nodes.fold(0, usize::saturating_add) as u64
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
    }
}
