//! The ranks of a model that one process runs.
//!
//! Entry point: [`LocalRanks`]. A shard is a process; each of its devices is a rank, and ranks are numbered shard by
//! shard.

use std::ops::Range;

/// The ranks of one shard among all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalRanks {
    /// The rank of the shard's first device.
    pub first: usize,
    /// The number of the shard's devices, whose ranks follow `first`.
    pub num_local: usize,
    /// The number of ranks of all shards.
    pub num_ranks: usize,
}

impl LocalRanks {
    /// Returns the ranks of shard number `shard` of `num_shards`, each with `num_local` devices.
    pub fn of_shard(shard: u32, num_shards: u32, num_local: u32) -> Self {
        let [shard, num_shards, num_local] = [shard, num_shards, num_local].map(|number| number as usize);
        Self { first: shard * num_local, num_local, num_ranks: num_shards * num_local }
    }

    /// Returns the shard's ranks, in the order of its devices.
    pub fn local(self) -> Range<usize> {
        self.first..self.first + self.num_local
    }
}
