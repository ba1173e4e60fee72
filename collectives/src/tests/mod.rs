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
use test_support::join_scoped;

use crate::Group;

/// A deadline far beyond what a test needs, even on a loaded machine. Tests that pass do not wait for it.
pub(crate) const LONG: Duration = Duration::from_secs(120);
pub(crate) const SHORT: Duration = Duration::from_millis(20);

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
        ranks.into_iter().map(|rank| join_scoped(rank, "a rank")).collect()
    })
}

/// Returns the number of ranks of the group that sleep.
fn sleepers(group: &Group) -> u32 {
    group.region().header().sleepers.0.load(std::sync::atomic::Ordering::SeqCst)
}

/// Returns values of very different magnitudes, so that another order of additions gives other bits.
pub(crate) fn input(seed: u64, rank: usize, len: usize) -> Vec<f32> {
    let mut state = seed ^ (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let exponent = (state >> 60) as i32 - 8;
        ((state >> 32) as i32 as f32) * 2.0_f32.powi(exponent)
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub(crate) fn sequential_sum(inputs: &[Vec<f32>]) -> Vec<f32> {
    let mut sums = inputs[0].clone();
    for input in &inputs[1..] {
        sums.iter_mut().zip(input).for_each(|(sum, value)| *sum += value);
    }
    sums
}
