//! The membership of a shard among the shards of a model: their common work, and this shard's share of its host.
//!
//! Entry points: [`Membership`], and [`Place`], from which it is made. Shards that compute on the CPU sum their
//! results: through shared memory if all of them run on one host, otherwise through sockets. The shards of a host take
//! turns while they load weights if the host's memory is too small for all at once. In a group, each shard counts as
//! one rank, even if it drives several devices. A single shard has no group, and its graphs have no operation that
//! needs one. A member whose step fails, or that is dropped, ends the group, so that the other members do not wait for
//! a result that never comes.

use std::os::fd::RawFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use collectives::{CollectiveError, Group, Mesh, Turn};
use model::graph::WeightSpec;
use rustix::thread::CpuSet;

use super::{BackendError, LocalRanks, Processors};

/// The maximum wait of a rank for the other ranks of its host while weights are loaded. The others may have started
/// later, and have as much to read.
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

/// The place of a shard among the shards of its model, and its connections to them.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The shard as a rank among all shards of the model.
    pub all: LocalRanks,
    /// The shard as a rank among the shards of its host.
    pub on_host: LocalRanks,
    /// The file that the shards of this host share.
    pub path: Option<&'a Path>,
    /// The numbers of the sockets to the other shards, in the order of shards and `None` for this one, if shards of
    /// several hosts sum their results.
    pub sockets: Option<&'a [Option<RawFd>]>,
}

/// The membership of this process among the ranks that share a model.
#[derive(Debug)]
pub struct Membership {
    all: LocalRanks,
    on_host: LocalRanks,
    /// The ranks of this host; `None` if there is one. Each operation locks the group while it runs.
    group: Option<Mutex<Group>>,
    /// The connections to the ranks of all hosts, if ranks of several hosts sum their results.
    mesh: Option<Mutex<Mesh>>,
}

impl Membership {
    /// Returns the membership of a single rank, which has no group.
    pub const fn alone() -> Self {
        let alone = LocalRanks { first: 0, num_local: 1, num_ranks: 1 };
        Self { all: alone, on_host: alone, group: None, mesh: None }
    }

    /// Joins the group of this host's ranks and that of all ranks, without waiting for other ranks.
    ///
    /// # Errors
    /// When several ranks of this host have no file, the file cannot be shared, or a socket cannot be used.
    pub fn join(place: Place<'_>) -> Result<Self, BackendError> {
        let Place { all, on_host, path, sockets } = place;
        let failed = |source| BackendError::Collective { rank: all.first, source };
        let mesh = sockets.map(|sockets| Mesh::inherited(all.first, sockets, STEP_DEADLINE).map(Mutex::new));
        let mesh = mesh.transpose().map_err(failed)?;
        let num_ranks = on_host.num_ranks;
        let group = if num_ranks == 1 {
            None
        } else {
            let path = path.ok_or(BackendError::NoCollectivePath { num_ranks })?;
            Some(Mutex::new(Group::open(path, on_host.first, num_ranks, LOAD_DEADLINE).map_err(failed)?))
        };
        Ok(Self { all, on_host, group, mesh })
    }

    /// Returns this rank, among those of all hosts.
    pub fn rank(&self) -> usize {
        self.all.first
    }

    /// Returns the number of ranks of all hosts.
    pub fn num_ranks(&self) -> usize {
        self.all.num_ranks
    }

    /// Returns the number of ranks of this host.
    pub fn num_on_host(&self) -> usize {
        self.on_host.num_ranks
    }

    /// Returns this rank's share of the host's `available` threads, at least one. If the threads cannot be divided
    /// equally, the first ranks get one more.
    pub fn num_threads(&self, available: usize) -> usize {
        let LocalRanks { first, num_ranks, .. } = self.on_host;
        let is_first = first < available % num_ranks;
        (available / num_ranks + usize::from(is_first)).max(1)
    }

    /// Returns the processors on which this rank's threads should run; see [`Processors::near_rank`].
    pub fn near(&self, processors: &Processors) -> Option<CpuSet> {
        processors.near_rank(self.on_host.first, self.on_host.num_ranks)
    }

    /// Replaces each value by its sum over all ranks. All ranks get the same bits.
    pub fn all_reduce(&self, values: &mut [f32]) -> Result<(), BackendError> {
        match &self.mesh {
            Some(mesh) => self.finished(lock(mesh).all_reduce(values)),
            None => self.with_group(|group| group.all_reduce(values)),
        }
    }

    /// Puts the parts `[n, size]` of all ranks side by side into `gathered`, `[n, size * num_ranks]`.
    pub fn all_gather(&self, part: &[f32], num_rows: usize, gathered: &mut [f32]) -> Result<(), BackendError> {
        match &self.mesh {
            Some(mesh) => self.finished(lock(mesh).all_gather(part, num_rows, gathered)),
            None => self.with_group(|group| group.all_gather(part, num_rows, gathered)),
        }
    }

    /// Returns the number of this host's ranks that may load a tensor at once: all of them, unless the memory is too
    /// small for the copies of their tensors and for the weights that stay in host memory (`stays`). The memory is the
    /// smallest that any of them sees, so all return the same number.
    pub fn max_loading(&self, weights: &[&WeightSpec], stays: Stays) -> Result<usize, BackendError> {
        let num_ranks = self.num_on_host();
        if self.group.is_none() {
            return Ok(1);
        }
        let least = self.available_bytes()?;
        let resident = match stays {
            Stays::OnHost => num_ranks as u64 * weights.iter().map(|spec| spec.local_bytes()).sum::<u64>(),
            Stays::OnDevice => 0,
        };
        Ok(at_once(weights, num_ranks, least.saturating_sub(resident)))
    }

    /// Returns the bytes that this host could still allocate: the smallest number that any of its ranks sees, so that
    /// all of them return the same.
    pub fn available_bytes(&self) -> Result<u64, BackendError> {
        let own = machine::available_bytes()?;
        if self.group.is_none() {
            return Ok(own);
        }
        let mut available = vec![0.0; self.num_on_host()];
        // An f32 is exact up to 2^24 MiB.
        self.with_group(|group| group.all_gather(&[(own / MIB) as f32], 1, &mut available))?;
        Ok(available.iter().copied().fold(f32::INFINITY, f32::min) as u64 * MIB)
    }

    /// Waits until fewer than `max_at_once` ranks of this host have a turn, then returns a turn for this rank, which
    /// ends when it is dropped; `None` if this host has no group. Calls `waiting` a few times a second while it waits.
    pub fn take_turn(&self, max_at_once: usize, waiting: &mut dyn FnMut()) -> Result<Option<Turn>, BackendError> {
        let mut turn = None;
        self.with_group(|group| group.take_turn(max_at_once, waiting).map(|taken| turn = Some(taken)))?;
        Ok(turn)
    }

    /// Begins a step: sets the time for which this rank waits for other ranks in a step of `num_tokens` tokens.
    pub fn begin_step(&self, num_tokens: usize) {
        let tokens = u32::try_from(num_tokens).unwrap_or(u32::MAX);
        let deadline = STEP_DEADLINE.saturating_add(TOKEN_DEADLINE.saturating_mul(tokens));
        if let Some(group) = &self.group {
            lock(group).set_deadline(deadline);
        }
        if let Some(mesh) = &self.mesh {
            lock(mesh).set_deadline(deadline);
        }
    }

    /// Ends the groups of this rank, because its state is lost and the other ranks cannot continue without it.
    pub fn abort(&self) {
        if let Some(group) = &self.group {
            lock(group).abort();
        }
        if let Some(mesh) = &self.mesh {
            lock(mesh).abort();
        }
    }

    /// Runs `operation` on the group of this host; does nothing if there is none.
    fn with_group(
        &self,
        operation: impl FnOnce(&mut Group) -> Result<(), CollectiveError>,
    ) -> Result<(), BackendError> {
        let Some(group) = &self.group else { return Ok(()) };
        self.finished(operation(&mut lock(group)))
    }

    fn finished(&self, result: Result<(), CollectiveError>) -> Result<(), BackendError> {
        result.map_err(|source| BackendError::Collective { rank: self.rank(), source })
    }
}

fn lock<T>(group: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock is safe to use: after a panic in the middle of an operation, the next one finds the group out of
    // step.
    group.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
            let on_host =
                |rank| Membership { on_host: LocalRanks::of_shard(rank, num_ranks, 1), ..Membership::alone() };
            (0..num_ranks).map(|rank| on_host(rank).num_threads(available)).collect()
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
        let join = |num_all, num_on_host| {
            let [all, on_host] = [num_all, num_on_host].map(|num_shards| LocalRanks::of_shard(0, num_shards, 1));
            Membership::join(Place { all, on_host, path: None, sockets: None })
        };
        let error = join(4, 2).unwrap_err().to_string();
        insta::assert_snapshot!(
            error,
            @"--collective-path is missing: 2 shards of one host need a file that they share"
        );
        assert!(join(1, 1).is_ok());
        // The other shard is on another host, and devices sum by themselves.
        assert_eq!(join(2, 1).unwrap().num_ranks(), 2);
    }
}
