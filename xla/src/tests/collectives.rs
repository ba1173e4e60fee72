//! Tests that two devices that share a model compute the same as the CPU backend alone.
//!
//! The graph of a rank has collectives and the rank's parts of the weights. The graph of the oracle, the CPU backend,
//! has the whole weights and no collectives.

use std::sync::Arc;

use backend::Batch;
use proptest::prelude::*;

use super::case::layout;
use super::rig::NUM_DEVICES;
use super::*;

/// Returns a weight that ranks share.
fn shared(name: &str, shape: [usize; 2], partition: Partition, num_ranks: usize) -> WeightSpec {
    WeightSpec { partition, num_ranks, ..weight(name, &shape, FloatType::F32) }
}

/// Checks the graph that `build` returns for two ranks against the graph for a single rank. Both have the same random
/// weights.
pub(super) fn check(
    build: &dyn Fn(usize) -> (Arc<Graph>, Vec<WeightSpec>),
    (batch, bucket): (impl Fn() -> Batch, [usize; 2]),
    arguments: &[Array],
    numbers: &mut Numbers,
    tolerances: &[Tolerance],
) {
    let weights = &mut |spec: &WeightSpec| numbers.short_floats(spec.shape.iter().product());
    check_with(build, (batch, bucket), arguments, weights, tolerances);
}

/// Does the same as [`check`], with the weights that `weights` returns.
pub(super) fn check_with(
    build: &dyn Fn(usize) -> (Arc<Graph>, Vec<WeightSpec>),
    (batch, bucket): (impl Fn() -> Batch, [usize; 2]),
    arguments: &[Array],
    weights: &mut dyn FnMut(&WeightSpec) -> Vec<f32>,
    tolerances: &[Tolerance],
) {
    let num_ranks = NUM_DEVICES as usize;
    let (whole, specs) = build(1);
    let (parts, part_specs) = build(num_ranks);
    let new = |graph| Case::new(graph, batch(), bucket, layout(bucket[0], 1, 16));
    let [mut whole, mut parts] = [whole, parts].map(new);
    for (spec, part_spec) in specs.into_iter().zip(part_specs) {
        let values = weights(&spec);
        whole.weights.push((spec, values.clone()));
        parts.weights.push((part_spec, values));
    }
    whole.arguments = arguments.to_vec();
    parts.arguments = arguments.to_vec();
    parts.sizes.num_devices = num_ranks;
    let expected = whole.on_cpu();
    if let Some(actual) = parts.on_xla() {
        parts.compare(&actual, &expected, tolerances);
    }
}

pub(super) fn rows_of_one_token(num_rows: usize, ids: &[i32]) -> Batch {
    let mut batch = Batch::default();
    (0..num_rows).for_each(|slot| _ = batch.push_row(slot, 0, &[ids[slot]], &[0]));
    batch
}

proptest! {
    #![proptest_config(cases(3))]

    #[test]
    fn parts_of_inputs_are_summed([n, size, features] in prop::array::uniform3(1..30usize), seed in any::<u64>()) {
        let build = |num_ranks: usize| {
            let mut graph = Graph::default();
            let specs = vec![
                shared("up", [features, size], Partition::Column, num_ranks),
                shared("down", [size, features], Partition::Row, num_ranks),
            ];
            let x = tokens(&mut graph, 0, &[size]);
            let [up, down] = [0, 1].map(|index| graph.weight(&specs[index]));
            let hidden = graph.linear(x, up, None).unwrap();
            let summand = graph.linear(hidden, down, None).unwrap();
            let sum = if num_ranks == 1 { summand } else { graph.all_reduce(summand).unwrap() };
            (graph.finish(&[sum]), specs)
        };
        let mut numbers = Numbers::new(seed);
        let x = floats(&[n, size], numbers.short_floats(n * size));
        let batch = || rows_of_one_token(n, &vec![0; n]);
        // Two sums of f32 are computed in another order. The products in the second sum are up to 2 · 4 · size.
        let tolerance = Tolerance::Close { relative: 1e-6, absolute: 1e-5 * (size * features) as f32 };
        check(&build, (batch, [n + 1, 1]), &[x], &mut numbers, &[tolerance]);
    }

    #[test]
    fn parts_of_outputs_are_joined([n, size, vocab_size] in prop::array::uniform3(1..30usize), seed in any::<u64>()) {
        let build = |num_ranks: usize| {
            let mut graph = Graph::default();
            let specs = vec![shared("head", [vocab_size, size], Partition::Vocab, num_ranks)];
            let x = tokens(&mut graph, 0, &[size]);
            let head = graph.weight(&specs[0]);
            let part = graph.linear(x, head, None).unwrap();
            if num_ranks == 1 {
                return (graph.finish(&[part]), specs);
            }
            let padded = graph.all_gather(part, num_ranks).unwrap();
            let joined = graph.columns(padded, 0..vocab_size).unwrap();
            (graph.finish(&[joined]), specs)
        };
        let mut numbers = Numbers::new(seed);
        let x = floats(&[n, size], numbers.short_floats(n * size));
        let batch = || rows_of_one_token(n, &vec![0; n]);
        // Sums of multiples of 2^-12 below 2^10 are exact in any order.
        check(&build, (batch, [n + 1, 1]), &[x], &mut numbers, &[Tolerance::Exact]);
    }

    /// Each device has the scales of its own outputs. It quantizes x as a single device does.
    #[test]
    fn parts_of_integers_are_joined([n, size, vocab_size] in prop::array::uniform3(1..30usize), seed in any::<u64>()) {
        let build = |num_ranks: usize| {
            let mut graph = Graph::default();
            let specs = vec![integers_of(shared("head", [vocab_size, size], Partition::Vocab, num_ranks))];
            let (head, ids) = (graph.weight(&specs[0]), graph.input(Input::TokenIds));
            let summand = graph.embedding(head, ids).unwrap();
            let hidden = if num_ranks == 1 { summand } else { graph.all_reduce(summand).unwrap() };
            let part = graph.linear(hidden, head, None).unwrap();
            if num_ranks == 1 {
                return (graph.finish(&[hidden, part]), specs);
            }
            let padded = graph.all_gather(part, num_ranks).unwrap();
            let joined = graph.columns(padded, 0..vocab_size).unwrap();
            (graph.finish(&[hidden, joined]), specs)
        };
        let mut numbers = Numbers::new(seed);
        let ids = numbers.indices(n, vocab_size);
        let batch = || rows_of_one_token(n, &ids);
        let logits = Tolerance::Close { relative: 1e-6, absolute: 2e-6 * size as f32 };
        check(&build, (batch, [n + 1, 1]), &[], &mut numbers, &[Tolerance::Exact, logits]);
    }

    /// fp8 floats times a power of two are quantized to fp8 without loss, so the oracle computes with the floats
    /// themselves.
    #[test]
    fn parts_of_floats_of_a_byte_are_joined([n, size, vocab_size] in prop::array::uniform3(1..30usize), seed in any::<u64>()) {
        let build = |num_ranks: usize| {
            let mut graph = Graph::default();
            let rounding = (num_ranks > 1).then_some(Rounding::Fp8);
            let specs = vec![WeightSpec { rounding, ..shared("head", [vocab_size, size], Partition::Vocab, num_ranks) }];
            let (head, ids) = (graph.weight(&specs[0]), graph.input(Input::TokenIds));
            let x = tokens(&mut graph, 0, &[size]);
            let summand = graph.embedding(head, ids).unwrap();
            let part = graph.linear(x, head, None).unwrap();
            if num_ranks == 1 {
                return (graph.finish(&[summand, part]), specs);
            }
            let hidden = graph.all_reduce(summand).unwrap();
            let padded = graph.all_gather(part, num_ranks).unwrap();
            let joined = graph.columns(padded, 0..vocab_size).unwrap();
            (graph.finish(&[hidden, joined]), specs)
        };
        let mut numbers = Numbers::new(seed);
        let x = floats(&[n, size], numbers.floats_of_a_byte(n, size));
        let ids = numbers.indices(n, vocab_size);
        let batch = || rows_of_one_token(n, &ids);
        let weights = &mut |_: &WeightSpec| numbers.floats_of_a_byte(vocab_size, size);
        check_with(&build, (batch, [n + 1, 1]), &[x], weights, &[Tolerance::Exact, Tolerance::Exact]);
    }

    #[test]
    fn each_id_is_in_one_part_of_a_table(n in 1..20usize, [vocab_size, size] in prop::array::uniform2(1..30usize), seed in any::<u64>()) {
        let build = |num_ranks: usize| {
            let mut graph = Graph::default();
            let specs = vec![shared("table", [vocab_size, size], Partition::Vocab, num_ranks)];
            let (table, ids) = (graph.weight(&specs[0]), graph.input(Input::TokenIds));
            let part = graph.embedding(table, ids).unwrap();
            let hidden = if num_ranks == 1 { part } else { graph.all_reduce(part).unwrap() };
            (graph.finish(&[hidden]), specs)
        };
        let mut numbers = Numbers::new(seed);
        let ids = numbers.indices(n, vocab_size);
        let batch = || rows_of_one_token(n, &ids);
        // The result is the sum of a number and a zero.
        check(&build, (batch, [n + 1, 1]), &[], &mut numbers, &[Tolerance::Exact]);
    }
}
