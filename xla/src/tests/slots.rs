//! States of slots: a row begins with zeros or continues from its state, and the slots outside of the step do not
//! change.

use backend::{BLOCK_SIZE, Batch};
use model::graph::StateSpec;
use proptest::prelude::*;

use super::case::layout;
use super::*;

/// Returns a case of rows, each in its own slot, in a program for `bucket`. `lens` has the numbers of tokens of each
/// row before the step and in it. Two operations add to one state: the second begins with the sum of the first.
fn case(lens: &[(usize, usize)], size: usize, bucket: [usize; 2], numbers: &mut Numbers) -> Case {
    let mut graph = Graph::default();
    let [x, y] = [0, 1].map(|index| tokens(&mut graph, index, &[size]));
    let state = graph.state(&StateSpec::of_slots("sums", &[size]));
    let outputs = [x, y].map(|x| graph.running_sum(x, state).unwrap());
    let graph = graph.finish(&outputs);
    let num_slots = lens.len() + 2;
    let slots = numbers.permutation(num_slots);
    let mut batch = Batch::default();
    for (slot, (before, now)) in slots.iter().zip(lens) {
        batch.push_row(*slot, *before, &vec![0; *now], &[0]);
    }
    let num_tokens: usize = lens.iter().map(|(_, now)| now).sum();
    let mut case = Case::new(graph, batch, bucket, layout(num_slots, 1, BLOCK_SIZE));
    case.arguments = (0..2).map(|_| floats(&[num_tokens, size], numbers.short_floats(num_tokens * size))).collect();
    case.slots = vec![numbers.short_floats(num_slots * size)];
    for (slot, _) in slots.iter().zip(lens).filter(|(_, (before, _))| *before == 0) {
        case.slots[0][slot * size..][..size].fill(f32::NAN);
    }
    case
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn sums_go_on_where_slots_left_them(
        lens in prop::collection::vec((prop_oneof![Just(0..1usize), Just(1..40)], 0.0..1.0f32), 1..5),
        tokens_per_row in prop::sample::select(vec![1, 2, 7, 32]),
        size in 1..6usize,
        seed in any::<u64>(),
    ) {
        let mut numbers = Numbers::new(seed);
        let now = |share: f32| 1 + (share * tokens_per_row as f32) as usize % tokens_per_row;
        let lens: Vec<_> =
            lens.into_iter().map(|(before, share)| (before.start + numbers.below(before.len()), now(share))).collect();
        let case = case(&lens, size, [lens.len() + 2, tokens_per_row], &mut numbers);
        // Sums of few multiples of 1/64 are exact in any order.
        case.check(&[Tolerance::Exact, Tolerance::Exact]);
    }
}

/// Compares outputs and states with sums that the test computes one by one; the states of unused slots stay as they
/// were.
#[test]
fn a_state_of_slots_is_as_long_as_its_rows() {
    let lens = [(0, 3), (5, 1), (0, 1)];
    let mut numbers = Numbers::new(3);
    let case = case(&lens, 2, [4, 4], &mut numbers);
    let [Elements::F32(x), Elements::F32(y)] = [&case.arguments[0].elements, &case.arguments[1].elements] else {
        panic!("arguments are floats")
    };
    let mut slots = case.slots[0].clone();
    let mut expected = [Vec::new(), Vec::new()];
    for row in &case.batch.rows {
        let sum = &mut slots[row.slot * 2..][..2];
        if row.context_len == row.num_tokens {
            sum.fill(0.0);
        }
        for (x, expected) in [x, y].into_iter().zip(&mut expected) {
            for token in x[row.first_token * 2..][..row.num_tokens * 2].chunks_exact(2) {
                sum.iter_mut().zip(token).for_each(|(sum, x)| *sum += x);
                expected.extend_from_slice(sum);
            }
        }
    }
    let outputs = expected.map(|sums| floats(&[5, 2], sums)).to_vec();
    let expected = case::Outcome { outputs, caches: vec![], slots: vec![slots], history: case.history.clone() };
    assert_eq!(case.on_cpu(), expected);
    if let Some(on_xla) = case.on_xla() {
        assert_eq!(on_xla, expected);
    }
}
