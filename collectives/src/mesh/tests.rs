//! Tests of the mesh. Ranks are threads that are connected by Unix sockets.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use proptest::prelude::*;
use test_support::join_scoped;

use super::message::HEADER_BYTES;
use super::{MESH_CHUNK_LEN, MIN_DIVIDED_LEN, Mesh};
use crate::tests::{LONG, SHORT, bits, input, sequential_sum};
use crate::{CollectiveError, Operation};

type Sockets = Vec<Option<OwnedFd>>;

/// Returns the sockets of each rank.
fn sockets(num_ranks: usize) -> Vec<Sockets> {
    let mut all: Vec<Sockets> = (0..num_ranks).map(|_| (0..num_ranks).map(|_| None).collect()).collect();
    for (one, two) in (0..num_ranks).flat_map(|one| (0..one).map(move |two| (one, two))) {
        let (socket, other) = UnixStream::pair().unwrap();
        all[one][two] = Some(socket.into());
        all[two][one] = Some(other.into());
    }
    all
}

fn meshes(num_ranks: usize, deadline: Duration) -> Vec<Mesh> {
    let join = |(rank, sockets)| Mesh::new(rank, sockets, deadline).unwrap();
    sockets(num_ranks).into_iter().enumerate().map(join).collect()
}

/// Runs `work` for each rank on a thread, and returns the results.
fn run<T: Send>(meshes: Vec<Mesh>, work: impl Fn(&mut Mesh) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        // A mesh is returned from its thread, so that no rank leaves before all have finished.
        let start = |mut mesh: Mesh| scope.spawn(move || (work(&mut mesh), mesh));
        let ranks: Vec<_> = meshes.into_iter().map(start).collect();
        let ended: Vec<_> = ranks.into_iter().map(|rank| join_scoped(rank, "a rank")).collect();
        ended.into_iter().map(|(result, _)| result).collect()
    })
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..40_usize,
        4 => MIN_DIVIDED_LEN - 2..3 * MIN_DIVIDED_LEN,
        1 => MESH_CHUNK_LEN - 1..MESH_CHUNK_LEN + 2,
        1 => Just(2 * MESH_CHUNK_LEN + 7),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn sums_are_those_of_one_host(
        num_ranks in 1..=5_usize,
        lengths in prop::collection::vec(lengths(), 1..4),
        seed: u64,
    ) {
        let results = run(meshes(num_ranks, LONG), |mesh| {
            let reduce = |len: &usize| {
                let mut values = input(seed, mesh.rank(), *len);
                mesh.all_reduce(&mut values).unwrap();
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
        num_ranks in 1..=4_usize,
        num_rows in 0..7_usize,
        row_len in prop_oneof![0..50_usize, MESH_CHUNK_LEN / 2 - 1..MESH_CHUNK_LEN / 2 + 2],
        seed: u64,
    ) {
        let results = run(meshes(num_ranks, LONG), |mesh| {
            let mut gathered = vec![f32::NAN; num_rows * row_len * num_ranks];
            mesh.all_gather(&input(seed, mesh.rank(), num_rows * row_len), num_rows, &mut gathered).unwrap();
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
    for len in [3, 3 * MIN_DIVIDED_LEN] {
        let results = run(meshes(4, LONG), |mesh| {
            let mut values = vec![f32::from_bits(0x7fc0_0000 + mesh.rank() as u32 + 1); len];
            mesh.all_reduce(&mut values).unwrap();
            bits(&values)
        });
        assert!(f32::from_bits(results[0][0]).is_nan());
        assert!(results.iter().all(|result| *result == results[0]), "{len} values");
    }
}

#[test]
fn many_operations_follow_each_other() {
    run(meshes(3, LONG), |mesh| {
        let mut gathered = [0.0; 6];
        for round in 0..1000_usize {
            let own = (round * 3 + mesh.rank()) as f32;
            let mut values = [own; 5];
            mesh.all_reduce(&mut values).unwrap();
            assert_eq!(values, [(round * 9 + 3) as f32; 5]);
            mesh.all_gather(&[own, -own], 2, &mut gathered).unwrap();
            let first = (round * 3) as f32;
            assert_eq!(gathered, [first, first + 1.0, first + 2.0, -first, -first - 1.0, -first - 2.0]);
        }
    });
}

#[test]
fn the_deadline_names_the_ranks_that_do_not_come() {
    let mut meshes = meshes(3, LONG);
    meshes[1].set_deadline(SHORT);
    let error = meshes[1].all_reduce(&mut [1.0]).unwrap_err();
    insta::assert_snapshot!(error, @"all-reduce of 1 values: waited 20ms for ranks 0, 2");
    let later = meshes[1].all_reduce(&mut [1.0]).unwrap_err();
    assert!(matches!(later, CollectiveError::Aborted { rank: 1 }), "{later}");
    let other = meshes[0].all_reduce(&mut [1.0]).unwrap_err();
    assert!(matches!(other, CollectiveError::Aborted { rank: 1 }), "{other}");
    // Rank 2 has the values of both, so only its next operation fails.
    meshes[2].all_reduce(&mut [1.0]).unwrap();
    let last = meshes[2].all_reduce(&mut [1.0]).unwrap_err();
    assert!(matches!(last, CollectiveError::Aborted { rank: 1 }), "{last}");
}

#[test]
fn a_rank_that_is_gone_is_named() {
    let mut meshes = meshes(2, LONG);
    drop(meshes.pop());
    let error = meshes[0].all_reduce(&mut [1.0]).unwrap_err();
    assert!(matches!(error, CollectiveError::Aborted { rank: 1 }), "{error}");
    // A process that dies leaves no message.
    let mut sockets = sockets(2);
    sockets[1].clear();
    let mut mesh = Mesh::new(0, sockets.swap_remove(0), LONG).unwrap();
    let error = mesh.all_reduce(&mut vec![1.0; 8 * MESH_CHUNK_LEN]).unwrap_err();
    assert!(matches!(error, CollectiveError::Aborted { rank: 1 }), "{error}");
}

#[test]
fn other_operations_are_out_of_step() {
    let errors = run(meshes(2, LONG), |mesh| {
        mesh.all_reduce(&mut [1.0]).unwrap();
        match mesh.rank() {
            0 => mesh.all_reduce(&mut [1.0; 6]).unwrap_err(),
            _ => mesh.all_gather(&[1.0; 6], 2, &mut [0.0; 12]).unwrap_err(),
        }
    });
    let seen = errors.into_iter().map(|error| match error {
        CollectiveError::OutOfStep { ordinal, other_rank, other_ordinal, other_operation, .. } => {
            assert_eq!((ordinal, other_ordinal), (2, 2));
            (other_rank, other_operation)
        }
        error => panic!("{error}"),
    });
    let gather = Operation::AllGather { num_rows: 2, num_values: 6 };
    assert_eq!(seen.collect::<Vec<_>>(), [(1, gather), (0, Operation::AllReduce { num_values: 6 })]);
}

#[test]
fn bytes_that_are_no_message_end_the_group() {
    use std::io::Write;

    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut mesh = Mesh::new(0, vec![None, Some(ours.into())], LONG).unwrap();
    theirs.write_all(&[7; HEADER_BYTES]).unwrap();
    let error = mesh.all_reduce(&mut [1.0]).unwrap_err();
    assert!(matches!(error, CollectiveError::Aborted { rank: 1 }), "{error}");
}

#[test]
fn sockets_must_be_those_of_the_other_ranks() {
    let (one, _other) = UnixStream::pair().unwrap();
    let error = Mesh::new(0, vec![Some(one.into()), None], LONG).unwrap_err().to_string();
    let expected = "rank 0 needs a socket to every other rank and none to itself, which rank 0 contradicts";
    assert_eq!(error, expected);
    let error = Mesh::inherited(0, &[None, Some(9999)], LONG).unwrap_err();
    assert!(matches!(error, CollectiveError::Socket { rank: 0, other_rank: 1, .. }), "{error}");
    assert!(matches!(Mesh::new(2, vec![None, None], LONG), Err(CollectiveError::Rank { rank: 2, num_ranks: 2 })));
}
