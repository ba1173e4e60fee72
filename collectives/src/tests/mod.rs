//! Helpers of the tests. Ranks are threads, each with its own `Group` on the same memory.

mod failures;
mod opening;
mod results;
mod turns;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rustix::fs::MemfdFlags;

use crate::Group;

/// A deadline far beyond what a test needs, even on a loaded machine. Tests that pass do not wait for it.
const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(20);

/// A file in memory (memfd) that ranks open by its path.
struct SharedMemory(File);

impl SharedMemory {
    fn new() -> Self {
        Self(rustix::fs::memfd_create("ranks", MemfdFlags::CLOEXEC).unwrap().into())
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    fn join(&self, rank: usize, num_ranks: usize, deadline: Duration) -> Group {
        Group::open(&self.path(), rank, num_ranks, deadline).unwrap()
    }
}

fn groups(num_ranks: usize) -> Vec<Group> {
    let memory = SharedMemory::new();
    (0..num_ranks).map(|rank| memory.join(rank, num_ranks, LONG)).collect()
}

/// Runs `work` for each rank on a thread, and returns the results. A rank leaves the group when `work` returns.
fn run<T: Send>(groups: Vec<Group>, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| work(group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Waits until `is_there` returns true, which another rank brings about.
fn wait_until(is_there: impl Fn() -> bool) {
    while !is_there() {
        thread::yield_now();
    }
}

/// Returns the number of ranks of the group that sleep.
fn sleepers(group: &Group) -> u32 {
    group.region().header().sleepers.0.load(std::sync::atomic::Ordering::SeqCst)
}
