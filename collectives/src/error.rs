//! Errors between ranks.

use std::path::PathBuf;
use std::time::Duration;

use crate::Operation;
use crate::region::MAX_RANKS;

/// The reason why a group was not opened, or an operation has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    #[error("a group of {num_ranks} ranks is not supported: the number must be from 1 to {MAX_RANKS}")]
    WorldSize { num_ranks: usize },
    #[error("rank is {rank}: it must be below the number of ranks, {num_ranks}")]
    Rank { rank: usize, num_ranks: usize },
    #[error("the file {path} cannot be opened and mapped as shared memory")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{path} is used for something else: it must be empty when the first rank opens it")]
    NotAGroup { path: PathBuf },
    #[error(
        "{path} has layout {found} of shared memory, but this rank uses layout {version}: all ranks must be of one version"
    )]
    OtherVersion { path: PathBuf, found: u16, version: u16 },
    #[error("{path} is shared by {found} ranks, but this rank belongs to a group of {num_ranks}")]
    OtherWorldSize { path: PathBuf, found: usize, num_ranks: usize },
    #[error("rank {rank} has opened {path} already: each group needs a file of its own")]
    RankTaken { rank: usize, path: PathBuf },
    #[error("rank {rank} needs a socket to every other rank and none to itself, which rank {other_rank} contradicts")]
    Sockets { rank: usize, other_rank: usize },
    #[error("rank {rank} cannot use its socket to rank {other_rank}")]
    Socket { rank: usize, other_rank: usize, source: std::io::Error },
    #[error(
        "all-gather of {num_values} values in {num_rows} rows from each of {num_ranks} ranks into {num_gathered}: \
         the number of rows must divide the number of values, and the result must hold the values of all ranks; \
         this is a defect of this server"
    )]
    Lengths { num_values: usize, num_rows: usize, num_ranks: usize, num_gathered: usize },
    /// Ranks run different operations. This is a defect of the callers.
    #[error(
        "ranks are out of step: rank {rank} does {operation} as operation {ordinal}, but rank {other_rank} does \
         {other_operation} as operation {other_ordinal}; this is a defect of this server"
    )]
    OutOfStep {
        rank: usize,
        ordinal: u64,
        operation: Operation,
        other_rank: usize,
        other_ordinal: u64,
        other_operation: Operation,
    },
    /// The `missing` ranks did not arrive before the deadline. In a wait for a turn, `missing` are the ranks that hold
    /// a turn.
    #[error("{operation}: waited {after:?} for {}", name_ranks(.missing))]
    Deadline { operation: Operation, missing: Vec<usize>, after: Duration },
    /// The connection to a rank has failed, for a reason that the system gives.
    #[error("the connection to rank {rank} has failed")]
    Lost { rank: usize, source: std::io::Error },
    /// A rank called [`abort`](crate::Group::abort), failed an operation, left the group, or closed its connection.
    #[error("rank {rank} has ended the group")]
    Aborted { rank: usize },
    #[error("cannot wait for other ranks")]
    Wait { source: std::io::Error },
}

fn name_ranks(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match names.len() {
        // Happens only in a wait for a turn: an earlier rank drew a ticket, but neither holds a turn nor has ended one.
        0 => "a rank that is gone".into(),
        1 => format!("rank {}", names[0]),
        _ => format!("ranks {}", names.join(", ")),
    }
}
