//! Tests of results: sums equal, bit for bit, those of adding the ranks in order; gathered rows are concatenated.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::{bits, groups, input, run, sequential_sum};
use crate::{CHUNK_LEN, Group};

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..40_usize,
        4 => 1000..20_000_usize,
        1 => CHUNK_LEN - 1..CHUNK_LEN + 2,
        1 => Just(3 * CHUNK_LEN + 7),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn sums_are_those_of_the_ranks_in_order(
        num_ranks in 1..=5_usize,
        lengths in prop::collection::vec(lengths(), 1..5),
        seed: u64,
    ) {
        let results = run(groups(num_ranks), |mut group| {
            let reduce = |len: &usize| {
                let mut values = input(seed, group.rank(), *len);
                group.all_reduce(&mut values).unwrap();
                bits(&values)
            };
            lengths.iter().map(reduce).collect::<Vec<_>>()
        });
        let sum = |len: &usize| {
            let inputs: Vec<_> = (0..num_ranks).map(|rank| input(seed, rank, *len)).collect();
            bits(&sequential_sum(&inputs))
        };
        let expected: Vec<_> = lengths.iter().map(sum).collect();
        for result in results {
            prop_assert!(result == expected);
        }
    }

    #[test]
    fn rows_are_gathered_side_by_side(
        num_ranks in 1..=5_usize,
        num_rows in 0..7_usize,
        row_len in prop_oneof![0..50_usize, CHUNK_LEN / 2 - 1..CHUNK_LEN / 2 + 2],
        seed: u64,
    ) {
        let results = run(groups(num_ranks), |mut group| {
            let mut gathered = vec![f32::NAN; num_rows * row_len * num_ranks];
            group.all_gather(&input(seed, group.rank(), num_rows * row_len), num_rows, &mut gathered).unwrap();
            gathered
        });
        let parts: Vec<_> = (0..num_ranks).map(|rank| input(seed, rank, num_rows * row_len)).collect();
        let row = |row: usize| parts.iter().flat_map(move |part| &part[row * row_len..(row + 1) * row_len]).copied();
        let expected: Vec<f32> = (0..num_rows).flat_map(row).collect();
        for result in results {
            prop_assert!(result == expected);
        }
    }
}

#[test]
fn all_ranks_get_the_same_nan() {
    for len in [3, 999, CHUNK_LEN] {
        let results = run(groups(4), |mut group| {
            let mut values = vec![f32::from_bits(0x7fc0_0000 + group.rank() as u32 + 1); len];
            group.all_reduce(&mut values).unwrap();
            bits(&values)
        });
        assert!(f32::from_bits(results[0][0]).is_nan());
        assert!(results.iter().all(|result| *result == results[0]), "{len} values");
    }
}

#[test]
fn zeros_keep_their_sign() {
    let results = run(groups(3), |mut group| {
        let mut values = [-0.0];
        group.all_reduce(&mut values).unwrap();
        values[0].to_bits()
    });
    assert_eq!(results, [(-0.0_f32).to_bits(); 3]);
}

/// Checks many small messages of several kinds in a row, during which ranks may spin, sleep and overtake each other.
fn sums_stay_right(mut group: Group) {
    let mut gathered = [0.0; 6];
    for round in 0..3000_usize {
        let own = (round * 3 + group.rank()) as f32;
        let mut values = [own; 5];
        group.all_reduce(&mut values).unwrap();
        assert_eq!(values, [(round * 9 + 3) as f32; 5]);
        group.all_gather(&[own, -own], 2, &mut gathered).unwrap();
        let first = (round * 3) as f32;
        assert_eq!(gathered, [first, first + 1.0, first + 2.0, -first, -first - 1.0, -first - 2.0]);
    }
}

#[test]
fn many_operations_follow_each_other() {
    run(groups(3), sums_stay_right);
}

#[test]
fn counters_wrap_around() {
    let mut groups = groups(3);
    let before = u32::MAX - 1000;
    for group in &mut groups {
        group.start_at_meeting(before);
    }
    groups[0].region().header().arrivals.0.store(before.wrapping_mul(2 * 3), Ordering::SeqCst);
    run(groups, sums_stay_right);
}
