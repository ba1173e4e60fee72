//! Tests of failures: if one rank fails, every other rank soon gets an error that names a rank, and the group stays
//! aborted.

use std::thread;

use test_support::{join_scoped, until};

use super::{LONG, SHORT, SharedMemory, groups, run, sleepers};
use crate::{CHUNK_LEN, CollectiveError, Operation};

#[test]
fn deadline_names_the_rank_that_does_not_come() {
    let memory = SharedMemory::new();
    let mut first = memory.join(0, 3, SHORT);
    let mut second = memory.join(1, 3, LONG);
    let _third = memory.join(2, 3, LONG);
    thread::scope(|scope| {
        let second = scope.spawn(move || second.all_reduce(&mut [1.0]));
        until("a rank that sleeps", || sleepers(&first) == 1);
        let error = first.all_reduce(&mut [1.0]).unwrap_err();
        insta::assert_snapshot!(error, @"all-reduce of 1 values: waited 20ms for rank 2");
        let CollectiveError::Deadline { operation, missing, after } = error else { panic!("{error}") };
        assert_eq!((operation, missing, after), (Operation::AllReduce { num_values: 1 }, vec![2], SHORT));
        // The other ranks do not wait for their own deadlines.
        assert!(matches!(join_scoped(second, "the second rank"), Err(CollectiveError::Aborted { rank: 0 })));
    });
}

#[test]
fn deadline_names_ranks_that_never_opened_the_group() {
    let memory = SharedMemory::new();
    let mut group = memory.join(1, 3, SHORT);
    let error = group.all_gather(&[1.0], 1, &mut [0.0; 3]).unwrap_err();
    insta::assert_snapshot!(error, @"all-gather of 1 values in 1 rows: waited 20ms for ranks 0, 2");
    let mut late = memory.join(0, 3, LONG);
    assert!(matches!(late.all_reduce(&mut []), Err(CollectiveError::Aborted { rank: 1 })));
    assert!(matches!(group.all_reduce(&mut []), Err(CollectiveError::Aborted { rank: 1 })));
}

#[test]
fn abort_ends_every_wait_now_and_later() {
    let mut groups = groups(3);
    let mut first = groups.remove(0);
    thread::scope(|scope| {
        let ranks: Vec<_> = groups
            .into_iter()
            .map(|mut group| scope.spawn(move || (group.all_reduce(&mut [1.0]), group.all_reduce(&mut [1.0]))))
            .collect();
        until("two ranks that sleep", || sleepers(&first) == 2);
        first.abort();
        for rank in ranks {
            let (now, later) = join_scoped(rank, "a rank that waits");
            assert!(matches!(now, Err(CollectiveError::Aborted { rank: 0 })));
            assert!(matches!(later, Err(CollectiveError::Aborted { rank: 0 })));
        }
    });
    assert!(matches!(first.all_reduce(&mut []), Err(CollectiveError::Aborted { rank: 0 })));
}

#[test]
fn a_rank_that_leaves_ends_the_group_for_those_that_go_on() {
    let results = run(groups(3), |mut group| {
        let mut values = vec![1.0; 2 * CHUNK_LEN];
        let before = group.all_reduce(&mut values).is_ok();
        if group.rank() == 1 {
            return (before, None);
        }
        (before, group.all_reduce(&mut values).err())
    });
    for (rank, (before, after)) in results.into_iter().enumerate() {
        assert!(before, "what all have completed is not affected");
        match after {
            None => assert_eq!(rank, 1),
            Some(error) => assert!(matches!(error, CollectiveError::Aborted { rank: 1 }), "{error}"),
        }
    }
}

#[test]
fn other_lengths_are_out_of_step() {
    for lengths in [[5, 6], [0, 1], [CHUNK_LEN, 2 * CHUNK_LEN]] {
        let errors = run(groups(2), |mut group| {
            group.all_reduce(&mut [1.0]).unwrap();
            group.all_reduce(&mut vec![1.0; lengths[group.rank()]]).unwrap_err().to_string()
        });
        for (rank, error) in errors.into_iter().enumerate() {
            let (own, other) = (lengths[rank], lengths[1 - rank]);
            let expected = format!(
                "ranks are out of step: rank {rank} does all-reduce of {own} values as operation 2, but rank {} does \
                 all-reduce of {other} values as operation 2; this is a defect of this server",
                1 - rank
            );
            assert_eq!(error, expected);
        }
    }
}

#[test]
fn other_operations_are_out_of_step() {
    let errors = run(groups(4), |mut group| match group.rank() {
        2 => group.all_gather(&[1.0; 6], 3, &mut [0.0; 24]).unwrap_err(),
        3 => group.all_gather(&[1.0; 6], 2, &mut [0.0; 24]).unwrap_err(),
        _ => group.all_reduce(&mut [1.0; 6]).unwrap_err(),
    });
    let different = |error: &CollectiveError| match error {
        CollectiveError::OutOfStep { rank, other_rank, .. } => (*rank, *other_rank),
        error => panic!("{error}"),
    };
    assert_eq!(errors.iter().map(different).collect::<Vec<_>>(), [(0, 2), (1, 2), (2, 0), (3, 0)]);
}

#[test]
fn lengths_that_do_not_fit_are_named_and_end_the_group() {
    let mut groups = groups(2);
    let error = groups[0].all_gather(&[1.0; 7], 2, &mut [0.0; 14]).unwrap_err();
    insta::assert_snapshot!(
        error,
        @"all-gather of 7 values in 2 rows from each of 2 ranks into 14: the number of rows must divide the number of values, and the result must hold the values of all ranks; this is a defect of this server"
    );
    assert!(matches!(groups[1].all_reduce(&mut []), Err(CollectiveError::Aborted { rank: 0 })));
}
