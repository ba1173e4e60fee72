//! The operation of a rank, as text for people and as words in shared memory that the other ranks compare.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::CollectiveError;

const ALL_REDUCE: u64 = 1;
const ALL_GATHER: u64 = 2;

/// An operation or a wait of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    AllReduce {
        num_values: usize,
    },
    AllGather {
        num_rows: usize,
        num_values: usize,
    },
    /// Waiting for a turn; the other ranks take no part in it.
    Turn {
        max_at_once: usize,
    },
    /// Another rank announced an operation of a kind that this rank does not know.
    Unknown {
        kind: u64,
    },
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce { num_values } => write!(formatter, "all-reduce of {num_values} values"),
            Self::AllGather { num_rows, num_values } => {
                write!(formatter, "all-gather of {num_values} values in {num_rows} rows")
            }
            Self::Turn { max_at_once } => write!(formatter, "taking a turn ({max_at_once} at once)"),
            Self::Unknown { kind } => write!(formatter, "an unknown operation ({kind})"),
        }
    }
}

/// Checks the lengths of an all-gather: `num_values` values in `num_rows` rows from each rank, `num_gathered` in all.
///
/// # Errors
/// [`CollectiveError::Lengths`] when they contradict each other.
pub(crate) fn check_lengths(
    num_values: usize,
    num_rows: usize,
    num_ranks: usize,
    num_gathered: usize,
) -> Result<(), CollectiveError> {
    let has_rows = if num_rows == 0 { num_values == 0 } else { num_values.is_multiple_of(num_rows) };
    match has_rows && num_values.checked_mul(num_ranks) == Some(num_gathered) {
        true => Ok(()),
        false => Err(CollectiveError::Lengths { num_values, num_rows, num_ranks, num_gathered }),
    }
}

/// One rank's operation in shared memory. The rank writes it before the operation's first meeting, and the others read
/// it afterwards. Each rank has two announcements and alternates between them, so that a fast rank's next operation
/// does not overwrite the one that a slow rank still compares.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Announcement {
    ordinal: AtomicU64,
    kind: AtomicU64,
    num_rows: AtomicU64,
    num_values: AtomicU64,
}

impl Announcement {
    /// Writes the operation. The next arrival publishes it: the arrival orders these writes before the reads of other
    /// ranks.
    pub(crate) fn write(&self, ordinal: u64, operation: Operation) {
        let (kind, num_rows, num_values) = match operation {
            Operation::AllReduce { num_values } => (ALL_REDUCE, 0, num_values),
            Operation::AllGather { num_rows, num_values } => (ALL_GATHER, num_rows, num_values),
            Operation::Turn { max_at_once } => (0, 0, max_at_once),
            Operation::Unknown { kind } => (kind, 0, 0),
        };
        self.ordinal.store(ordinal, Ordering::Relaxed);
        self.kind.store(kind, Ordering::Relaxed);
        self.num_rows.store(num_rows as u64, Ordering::Relaxed);
        self.num_values.store(num_values as u64, Ordering::Relaxed);
    }

    /// Returns the ordinal and the operation. All ranks must have arrived at the first meeting of the operation. The
    /// values are only for comparisons and messages, never for bounds.
    pub(crate) fn read(&self) -> (u64, Operation) {
        let num_rows = self.num_rows.load(Ordering::Relaxed) as usize;
        let num_values = self.num_values.load(Ordering::Relaxed) as usize;
        let operation = match self.kind.load(Ordering::Relaxed) {
            ALL_REDUCE => Operation::AllReduce { num_values },
            ALL_GATHER => Operation::AllGather { num_rows, num_values },
            kind => Operation::Unknown { kind },
        };
        (self.ordinal.load(Ordering::Relaxed), operation)
    }
}
