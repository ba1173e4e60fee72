//! All-reduce and all-gather between rank processes: over shared memory on one host, over sockets between hosts.
//!
//! Entry points: [`Group::open`] for the ranks of one host, [`Mesh`] for those of several. Processes that share a model
//! on the CPU add up activations, in most models twice per layer. On one host they map one file, a memfd or a file on
//! tmpfs:
//!
//! ```text
//! ┌────────────────────────────────────────┐
//! │ header   magic, version, num_ranks     │
//! │          arrivals · sleepers · aborted │   one word counts the arrivals of all ranks
//! │          tickets · turns ended         │
//! ├────────────────────────────────────────┤
//! │ ranks    operation, count of meetings  │   to compare operations, and to name missing ranks
//! ├────────────────────────────────────────┤
//! │ staging  rank 0   [ buffer 0 | 1 ]     │   CHUNK_LEN f32 each, written by its rank alone
//! │          rank 1   [ buffer 0 | 1 ]     │
//! └────────────────────────────────────────┘
//!
//!  rank 0   copy in │ arrive ··wait·· │ compare │ add 0 + 1 ──▶ result
//!  rank 1   copy in ·· │ arrive wait  │ compare │ add 0 + 1 ──▶ result
//!                           ▲ a meeting: no rank passes before all have arrived
//! ```
//!
//! 1. Each rank announces its operation and copies a chunk of its values into its staging buffer. Then it arrives: it
//!    adds one to the count of arrivals (release).
//! 2. When all ranks have arrived (acquire) with the first chunk, each compares the operations of the others with its
//!    own. If two differ, the result is the error [`CollectiveError::OutOfStep`] instead of a hang or a wrong sum.
//! 3. Every rank adds up the staged values, from rank 0 to rank N−1, separately for each element. So the bits of a sum
//!    are the same on all ranks, and do not depend on how the values are cut into chunks. With more than two ranks,
//!    large chunks are added up in parts instead: each rank adds up one part, and the others read it after a second
//!    meeting. The order of the additions stays the same, and so do the sums.
//! 4. The next chunk uses the other buffer. A rank that arrives at a meeting has finished reading the previous chunk,
//!    so one meeting per chunk keeps a buffer from being overwritten while it is read.
//!
//! A rank that waits at a meeting spins for a microsecond if there is a core for every rank, then yields its core
//! between checks, and then sleeps in the kernel (futex). The last rank to arrive makes the system call that wakes the
//! others only if some of them sleep. Every wait has a deadline, and its error names the missing ranks. An operation
//! that fails aborts the group for good: every unfinished or later wait of every rank ends with
//! [`CollectiveError::Aborted`]. A rank that crashes leaves no message; the others notice at the deadline.
//!
//! The crate knows no model, starts no process or thread, reads no environment variables and logs nothing. Linux only.

mod error;
mod group;
mod mesh;
mod operation;
mod region;
mod rendezvous;
mod staging;
mod turn;

#[cfg(test)]
mod tests;

pub use error::CollectiveError;
pub use group::Group;
pub use mesh::{MESH_CHUNK_LEN, Mesh};
pub use operation::Operation;
pub use region::{CHUNK_LEN, MAX_RANKS};
pub use turn::Turn;
