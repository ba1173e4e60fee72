//! Tests of opening a group: a file that does not fit what all ranks expect is an error and stays unchanged.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{LONG, SharedMemory};
use crate::{Group, MAX_RANKS};

fn refusal(path: &Path, rank: usize, num_ranks: usize) -> String {
    let error = Group::open(path, rank, num_ranks, LONG).unwrap_err();
    error.to_string().replace(&path.display().to_string(), "FILE")
}

#[test]
fn ranks_and_sizes_have_limits() {
    let memory = SharedMemory::new();
    insta::assert_snapshot!(
        refusal(&memory.path(), 0, 0),
        @"a group of 0 ranks is not supported: the number must be from 1 to 64"
    );
    insta::assert_snapshot!(
        refusal(&memory.path(), 0, 65),
        @"a group of 65 ranks is not supported: the number must be from 1 to 64"
    );
    insta::assert_snapshot!(refusal(&memory.path(), 2, 2), @"rank is 2: it must be below the number of ranks, 2");
    assert_eq!(memory.0.metadata().unwrap().len(), 0);
    let last = memory.join(MAX_RANKS - 1, MAX_RANKS, LONG);
    assert_eq!((last.rank(), last.num_ranks()), (63, 64));
}

#[test]
fn another_number_of_ranks_is_named_with_ours() {
    let memory = SharedMemory::new();
    let _first = memory.join(0, 2, LONG);
    let size_bytes = memory.0.metadata().unwrap().len();
    let expected = "FILE is shared by 2 ranks, but this rank belongs to a group of 3";
    assert_eq!(refusal(&memory.path(), 1, 3), expected);
    assert_eq!(memory.0.metadata().unwrap().len(), size_bytes);
}

#[test]
fn a_rank_joins_once() {
    let memory = SharedMemory::new();
    drop(memory.join(1, 2, LONG));
    insta::assert_snapshot!(
        refusal(&memory.path(), 1, 2),
        @"rank 1 has opened FILE already: each group needs a file of its own"
    );
}

#[test]
fn a_file_of_something_else_is_left_alone() {
    let mut memory = SharedMemory::new();
    memory.0.write_all(b"precious data").unwrap();
    let expected = "FILE is used for something else: it must be empty when the first rank opens it";
    assert_eq!(refusal(&memory.path(), 0, 2), expected);
    assert_eq!(fs::read(memory.path()).unwrap(), b"precious data");
}

#[test]
fn another_version_is_named_with_ours() {
    let memory = SharedMemory::new();
    drop(memory.join(0, 2, LONG));
    let mut word = [0; 8];
    memory.0.read_exact_at(&mut word, 0).unwrap();
    let other = u64::from_ne_bytes(word) + (1 << 16);
    memory.0.write_all_at(&other.to_ne_bytes(), 0).unwrap();
    insta::assert_snapshot!(
        refusal(&memory.path(), 1, 2),
        @"FILE has layout 2 of shared memory, but this rank uses layout 1: all ranks must be of one version"
    );
}

#[test]
fn a_file_that_is_not_there_is_not_made() {
    insta::assert_snapshot!(
        refusal(Path::new("/proc/self/no-such-file"), 0, 2),
        @"the file FILE cannot be opened and mapped as shared memory"
    );
}

#[test]
fn one_rank_waits_for_nobody() {
    let memory = SharedMemory::new();
    let mut group = memory.join(0, 1, LONG);
    let mut values = [1.5, -0.0];
    group.all_reduce(&mut values).unwrap();
    assert_eq!(values, [1.5, -0.0]);
    let mut gathered = [0.0; 2];
    group.all_gather(&values, 2, &mut gathered).unwrap();
    assert_eq!(gathered, values);
    let _turn = group.take_turn(1, &mut || panic!("it does not wait")).unwrap();
}
