//! Tests with ranks as processes: the test executable starts itself once per rank, and passes the rank, its work and
//! the path on standard input.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use collectives::{CHUNK_LEN, CollectiveError, Group};
use rustix::fs::MemfdFlags;
use test_support::exit_status;

const NUM_RANKS: usize = 3;

fn start(path: &Path, rank: usize, work: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "a_rank"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    write!(child.stdin.take().unwrap(), "{rank} {work} {}", path.display()).unwrap();
    child
}

/// Returns a file in memory (memfd) that child processes inherit, and its path.
fn shared_memory() -> (rustix::fd::OwnedFd, String) {
    let memory = rustix::fs::memfd_create("ranks", MemfdFlags::empty()).unwrap();
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    (memory, path)
}

fn check_sums(group: &mut Group) {
    for len in [1, 1000, 2 * CHUNK_LEN + 1] {
        let mut values: Vec<f32> = (0..len).map(|index| (index + group.rank()) as f32).collect();
        group.all_reduce(&mut values).unwrap();
        let sum = |index: usize| (NUM_RANKS * index + NUM_RANKS) as f32;
        assert!(values.iter().enumerate().all(|(index, value)| *value == sum(index)), "{len} values");
    }
}

#[test]
#[ignore = "a rank that the other tests start"]
fn a_rank() {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    let words: Vec<&str> = text.split(' ').collect();
    let [rank, work, path] = words.as_slice() else { return };
    let deadline = Duration::from_secs(120);
    let mut group = Group::open(Path::new(path), rank.parse().unwrap(), NUM_RANKS, deadline).unwrap();
    match *work {
        "sums" => check_sums(&mut group),
        "crashes" => std::process::abort(),
        _ => panic!("{work} is not known"),
    }
}

#[test]
fn processes_add_up() {
    let (_memory, path) = shared_memory();
    let path = Path::new(&path);
    let others: Vec<Child> = (1..NUM_RANKS).map(|rank| start(path, rank, "sums")).collect();
    check_sums(&mut Group::open(path, 0, NUM_RANKS, Duration::from_secs(120)).unwrap());
    for mut other in others {
        assert!(exit_status(&mut other, "a rank that adds up").success());
    }
}

#[test]
fn a_process_that_crashes_is_named() {
    let (_memory, path) = shared_memory();
    let path = Path::new(&path);
    for rank in 1..NUM_RANKS {
        assert!(!exit_status(&mut start(path, rank, "crashes"), "a rank that crashes").success());
    }
    let mut group = Group::open(path, 0, NUM_RANKS, Duration::from_millis(20)).unwrap();
    let error = group.all_reduce(&mut [1.0]).unwrap_err();
    assert!(matches!(&error, CollectiveError::Deadline { missing, .. } if missing == &[1, 2]), "{error}");
}
