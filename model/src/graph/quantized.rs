//! Decides which weights of a model's graphs are quantized.
//!
//! Entry point: [`quantized`]. The matrices of linear layers and of experts are quantized, even if an embedding shares
//! them, except a matrix whose outputs choose experts: it is small, and its errors would send tokens to other experts.
//! The matrix of the output head keeps at least 8 bits, because its errors directly affect which token is chosen.

use std::collections::HashMap;
use std::sync::Arc;

use numbers::Rounding;

use super::{Graph, Node, Op, Partition, WeightSpec};

/// Returns the same graphs, in which the field `rounding` of each weight is set as the comment of this module says.
pub fn quantized<const N: usize>(graphs: [&Graph; N], rounding: Rounding) -> [Arc<Graph>; N] {
    let mut by_name: HashMap<String, Option<Rounding>> = HashMap::new();
    for graph in graphs {
        for (spec, wanted) in matrices(graph, rounding) {
            let known = by_name.entry(spec.name.clone()).or_insert(wanted);
            *known = known.and(wanted);
        }
    }
    let of = |spec: &WeightSpec| by_name.get(&spec.name).copied().flatten();
    graphs.map(|graph| {
        let mut graph = graph.clone();
        for node in &mut graph.nodes {
            if let Op::Weight(spec) = &mut node.op {
                spec.rounding = of(spec);
            }
        }
        Arc::new(graph)
    })
}

/// Returns the matrices of linear layers and of experts, each with its rounding, or `None` if it is not quantized. A
/// matrix that is used several times is listed several times.
fn matrices(graph: &Graph, rounding: Rounding) -> Vec<(&WeightSpec, Option<Rounding>)> {
    let mut matrices = Vec::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        for (position, operand) in node.operands.iter().enumerate() {
            let Op::Weight(spec) = &graph.node(*operand).op else { continue };
            match (&node.op, position) {
                (Op::Linear, 1) if chooses(graph, index) => matrices.push((spec, None)),
                (Op::Linear, 1) if spec.partition == Partition::Vocab => matrices.push((spec, Some(of_head(rounding)))),
                (Op::Linear, 1) | (Op::Experts(_), 2..=4) => matrices.push((spec, Some(rounding))),
                _ => {}
            }
        }
    }
    matrices
}

/// Returns the rounding of the output head (the vocabulary matrix) when other matrices get `rounding`. It has at least
/// 8 bits.
fn of_head(rounding: Rounding) -> Rounding {
    match rounding {
        Rounding::Int8 | Rounding::Int4 => Rounding::Int8,
        Rounding::Fp8 => Rounding::Fp8,
    }
}

/// True if the result of `node` is the input of a router, which chooses experts.
fn chooses(graph: &Graph, node: usize) -> bool {
    let reads = |other: &Node| other.operands.iter().any(|operand| operand.index() == node);
    graph.nodes().iter().any(|other| matches!(other.op, Op::Route(_)) && reads(other))
}

#[cfg(test)]
mod tests {
    use numbers::FloatType;

    use super::*;
    use crate::graph::{Activation, DType, Dim, ExpertsSpec, Input, RouterSpec, Shape, Source, Value, Weighted};

    fn weight(graph: &mut Graph, name: &str, shape: &[usize], partition: Partition) -> Value {
        let (name, shape, source) = (name.to_owned(), shape.to_vec(), Source::Whole);
        let (dtype, rounding) = (FloatType::Bf16, None);
        graph.weight(&WeightSpec { name, shape, dtype, partition, num_ranks: 1, num_copies: 1, source, rounding })
    }

    /// Returns a decoder with experts, and an output head that shares the decoder's table.
    fn model() -> [Graph; 2] {
        let mut decoder = Graph::default();
        let ids = decoder.input(Input::TokenIds);
        let table = weight(&mut decoder, "table", &[9, 4], Partition::Vocab);
        let places = weight(&mut decoder, "places", &[9, 4], Partition::Replicated);
        let x = decoder.embedding(table, ids).unwrap();
        let place = decoder.embedding(places, ids).unwrap();
        let x = decoder.add(x, place).unwrap();
        let matrix = weight(&mut decoder, "matrix", &[4, 4], Partition::Column);
        let bias = weight(&mut decoder, "bias", &[4], Partition::Column);
        let x = decoder.linear(x, matrix, Some(bias)).unwrap();
        let choice = weight(&mut decoder, "choice", &[2, 4], Partition::Replicated);
        let scores = decoder.linear(x, choice, None).unwrap();
        let mixture = decoder.route(scores, None, RouterSpec::softmax(1, true)).unwrap();
        let experts = ["gate", "up", "down"].map(|name| weight(&mut decoder, name, &[2, 4, 4], Partition::Column));
        let spec = ExpertsSpec { num_chosen: 1, gating: Activation::Silu.into(), weighted: Weighted::Output };
        let biases = ["gate", "up", "down"]
            .map(|name| weight(&mut decoder, &format!("bias of {name}"), &[2, 4], Partition::Column));
        decoder.experts([x, mixture], experts, Some(biases), spec).unwrap();
        let mut head = Graph::default();
        let hidden = head.argument(0, Shape::new([Dim::Rows, Dim::Fixed(4)]), DType::F32);
        let table = weight(&mut head, "table", &[9, 4], Partition::Vocab);
        head.linear(hidden, table, None).unwrap();
        [decoder, head]
    }

    #[test]
    fn matrices_are_rounded_wherever_they_are_used() {
        let [decoder, head] = &model();
        let all = [(Rounding::Int8, Rounding::Int8), (Rounding::Int4, Rounding::Int8), (Rounding::Fp8, Rounding::Fp8)];
        for (rounding, of_head) in all {
            let [decoder, head] = quantized([decoder, head], rounding);
            let found = |graph: &Graph| -> Vec<(String, Option<Rounding>)> {
                graph.weights().map(|spec| (spec.name.clone(), spec.rounding)).collect()
            };
            let expected = [
                ("table", Some(of_head)),
                ("places", None),
                ("matrix", Some(rounding)),
                ("bias", None),
                ("choice", None),
                ("gate", Some(rounding)),
                ("up", Some(rounding)),
                ("down", Some(rounding)),
                ("bias of gate", None),
                ("bias of up", None),
                ("bias of down", None),
            ];
            assert_eq!(found(&decoder), expected.map(|(name, rounding)| (name.to_owned(), rounding)));
            assert_eq!(found(&head), [("table".to_owned(), Some(of_head))]);
        }
    }
}
