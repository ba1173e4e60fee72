//! The membership of a shard in the group of its host's shards: their common work, and its share of the processor.
//!
//! Entry point: [`Membership`]. Shards that compute on the CPU sum their results through the group, and all shards take
//! turns while they load weights if the host's memory is too small for all at once. In a group, each shard counts as
//! one rank, even if it drives several devices. A single shard has no group, and its graphs have no operation that
//! needs one. A member whose step fails, or that is dropped, ends the group, so that the other members do not wait for
//! a result that never comes.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use collectives::{CollectiveError, Group, Turn};
use model::graph::WeightSpec;
use rustix::thread::CpuSet;

use super::memory::available_host_bytes;
use super::{BackendError, LocalRanks, Processors};

/// The time for which a rank that loads weights waits for the other ranks, which may have started later and have as
/// much to read.
const LOAD_DEADLINE: Duration = Duration::from_secs(60);
/// The time for which a rank waits for the other ranks in a step, without the time per token (`TOKEN_DEADLINE`). All
/// ranks do the same work at the same time. The client of the shards usually waits longer, so that this rank can still
/// report the rank for which it waited.
const STEP_DEADLINE: Duration = Duration::from_secs(10);
const TOKEN_DEADLINE: Duration = Duration::from_millis(1);
/// The maximum number of copies of a tensor that exist while it is loaded: one as stored, one converted.
const COPIES_OF_A_TENSOR: u64 = 2;
const MIB: u64 = 1 << 20;

/// The memory in which weights stay after loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stays {
    OnHost,
    OnDevice,
}

/// The membership of this process in the group of the ranks that share a model on this host.
#[derive(Debug)]
pub struct Membership {
    ranks: LocalRanks,
    /// `None` if there is one rank. Each operation locks the group while it runs.
    group: Option<Mutex<Group>>,
}

impl Membership {
    /// Returns the membership of a single rank, which has no group.
    pub const fn alone() -> Self {
        Self { ranks: LocalRanks { first: 0, num_local: 1, num_ranks: 1 }, group: None }
    }

    /// Joins the group of all ranks, which share the file at `path`, without waiting for the other ranks. A single rank
    /// needs no file.
    ///
    /// # Errors
    /// When there are several ranks and `path` is `None`, or the file cannot be shared.
    pub fn join(ranks: LocalRanks, path: Option<&Path>) -> Result<Self, BackendError> {
        let LocalRanks { first: rank, num_local: _, num_ranks } = ranks;
        if num_ranks == 1 {
            return Ok(Self { ranks, group: None });
        }
        let path = path.ok_or(BackendError::NoCollectivePath { num_ranks })?;
        let group = Group::open(path, rank, num_ranks, LOAD_DEADLINE);
        let group = group.map_err(|source| BackendError::Collective { rank, source })?;
        Ok(Self { ranks, group: Some(Mutex::new(group)) })
    }

    /// Returns this rank.
    pub fn rank(&self) -> usize {
        self.ranks.first
    }

    /// Returns the number of ranks in the group.
    pub fn num_ranks(&self) -> usize {
        self.ranks.num_ranks
    }

    /// Returns this rank's share of `available` threads, at least one. If the threads cannot be divided equally, the
    /// first ranks get one more.
    pub fn num_threads(&self, available: usize) -> usize {
        let is_first = self.rank() < available % self.num_ranks();
        (available / self.num_ranks() + usize::from(is_first)).max(1)
    }

    /// Returns the processors on which this rank's threads should run; see [`Processors::near_rank`].
    pub fn near(&self, processors: &Processors) -> Option<CpuSet> {
        processors.near_rank(self.rank(), self.num_ranks())
    }

    /// Replaces each value by its sum over all ranks. All ranks get the same bits.
    pub fn all_reduce(&self, values: &mut [f32]) -> Result<(), BackendError> {
        self.with_group(|group| group.all_reduce(values))
    }

    /// Puts the parts `[n, size]` of all ranks side by side into `gathered`, `[n, size * num_ranks]`.
    pub fn all_gather(&self, part: &[f32], num_rows: usize, gathered: &mut [f32]) -> Result<(), BackendError> {
        self.with_group(|group| group.all_gather(part, num_rows, gathered))
    }

    /// Returns the number of ranks that may load a tensor at once: all ranks, unless the memory is too small for the
    /// copies of their tensors and for the weights that stay in host memory (`stays`). The memory is the smallest that
    /// any rank sees, so all ranks return the same number.
    pub fn max_loading(&self, weights: &[&WeightSpec], stays: Stays) -> Result<usize, BackendError> {
        if self.group.is_none() {
            return Ok(1);
        }
        let mut available = vec![0.0; self.num_ranks()];
        // An f32 is exact up to 2^24 MiB.
        let own = [(available_host_bytes()? / MIB) as f32];
        self.all_gather(&own, 1, &mut available)?;
        let least = available.iter().copied().fold(f32::INFINITY, f32::min) as u64 * MIB;
        let resident = match stays {
            Stays::OnHost => self.num_ranks() as u64 * weights.iter().map(|spec| spec.local_bytes()).sum::<u64>(),
            Stays::OnDevice => 0,
        };
        Ok(at_once(weights, self.num_ranks(), least.saturating_sub(resident)))
    }

    /// Waits until fewer than `max_at_once` ranks have a turn, then returns a turn for this rank, which ends when it is
    /// dropped; `None` if there is no group. Calls `waiting` a few times a second while it waits.
    pub fn take_turn(&self, max_at_once: usize, waiting: &mut dyn FnMut()) -> Result<Option<Turn>, BackendError> {
        let mut turn = None;
        self.with_group(|group| group.take_turn(max_at_once, waiting).map(|taken| turn = Some(taken)))?;
        Ok(turn)
    }

    /// Begins a step: sets the time for which this rank waits for other ranks in a step of `num_tokens` tokens.
    pub fn begin_step(&self, num_tokens: usize) {
        if let Some(mut group) = self.lock() {
            let tokens = u32::try_from(num_tokens).unwrap_or(u32::MAX);
            group.set_deadline(STEP_DEADLINE.saturating_add(TOKEN_DEADLINE.saturating_mul(tokens)));
        }
    }

    /// Ends the group of all ranks, because this rank's state is lost and the other ranks cannot continue without it.
    pub fn abort(&self) {
        if let Some(group) = self.lock() {
            group.abort();
        }
    }

    /// Runs `operation` on the group; does nothing if there is no group.
    fn with_group(
        &self,
        operation: impl FnOnce(&mut Group) -> Result<(), CollectiveError>,
    ) -> Result<(), BackendError> {
        let Some(mut group) = self.lock() else { return Ok(()) };
        operation(&mut group).map_err(|source| BackendError::Collective { rank: self.rank(), source })
    }

    fn lock(&self) -> Option<MutexGuard<'_, Group>> {
        // A poisoned lock is safe to use: after a panic in the middle of an operation, the next one finds the group out
        // of step.
        self.group.as_ref().map(|group| group.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// Returns the number of ranks, from 1 to `num_ranks`, whose largest tensors fit with their copies into half of
/// `left_bytes`.
fn at_once(weights: &[&WeightSpec], num_ranks: usize, left_bytes: u64) -> usize {
    let largest = weights.iter().map(|spec| spec.local_bytes()).max().unwrap_or(0).max(1);
    let fitting = left_bytes / 2 / (COPIES_OF_A_TENSOR * largest);
    usize::try_from(fitting).unwrap_or(usize::MAX).clamp(1, num_ranks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::graph::{Partition, Source};
    use numbers::FloatType;

    #[test]
    fn threads_are_shared_out() {
        let threads = |num_ranks: u32, available| -> Vec<usize> {
            let of_shard = |rank| Membership { ranks: LocalRanks::of_shard(rank, num_ranks, 1), group: None };
            (0..num_ranks).map(|rank| of_shard(rank).num_threads(available)).collect()
        };
        assert_eq!(threads(1, 6), [6]);
        assert_eq!(threads(4, 6), [2, 2, 1, 1]);
        assert_eq!(threads(4, 2), [1, 1, 1, 1]);
    }

    #[test]
    fn as_many_load_as_memory_has_room_for() {
        let spec = WeightSpec {
            name: "w".to_owned(),
            shape: vec![1 << 20, 4],
            dtype: FloatType::Bf16,
            partition: Partition::Column,
            num_ranks: 4,
            num_copies: 1,
            source: Source::Whole,
            rounding: None,
        };
        let specs = [&spec, &spec];
        // Each rank has 2 MiB of each tensor, and a turn takes 4 MiB.
        for (left_mib, expected) in [(0, 1), (8, 1), (16, 2), (24, 3), (10_000, 4)] {
            assert_eq!(at_once(&specs, 4, left_mib * MIB), expected, "{left_mib}");
        }
    }

    #[test]
    fn a_group_needs_a_file() {
        let error = Membership::join(LocalRanks::of_shard(0, 2, 1), None).unwrap_err().to_string();
        assert_eq!(error, "--collective-path is missing: 2 shards of one host need a file that they share");
        assert!(Membership::join(LocalRanks::of_shard(0, 1, 1), None).is_ok());
    }
}
