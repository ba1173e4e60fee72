//! All-reduce and all-gather between the rank processes of one host, over shared memory.
//!
//! Door: [`Group::open`]. A model that is split over N processes adds up activations twice per layer; this crate is
//! those additions on the CPU. The ranks map one file, a memfd or a file on tmpfs:
//!
//! ```text
//! ┌────────────────────────────────────────┐
//! │ header   magic, version, world size    │
//! │          arrivals · sleepers · aborted │   one word counts the arrivals of all ranks
//! │          tickets · turns ended         │
//! ├────────────────────────────────────────┤
//! │ ranks    what each does, how far it is │   to compare, and to name who is missing
//! ├────────────────────────────────────────┤
//! │ staging  rank 0   [ buffer 0 | 1 ]     │   CHUNK_LEN f32 each, written by its rank alone
//! │          rank 1   [ buffer 0 | 1 ]     │
//! └────────────────────────────────────────┘
//!
//!  rank 0   copy in │ arrive ··wait·· │ compare │ add 0 + 1 ──▶ result
//!  rank 1   copy in ·· │ arrive wait  │ compare │ add 0 + 1 ──▶ result
//!                           ▲ a meeting: nobody passes before all have come
//! ```
//!
//! 1. A rank says what it is about to do, copies a chunk of its values into its staging buffer, and arrives: it adds
//!    one to the count of arrivals (release).
//! 2. When all have arrived (acquire) each compares what the others do with what it does. A difference is
//!    [`CollectiveError::OutOfStep`]: never a hang, never a wrong number.
//! 3. Everybody adds the staged values up, from rank 0 to rank N−1, for each element alone: the bits depend neither on
//!    the rank nor on the chunk. Chunks of many ranks are added up in parts instead, one part by each rank, and fetched
//!    after a second meeting: the same sums in the same order.
//! 4. The next chunk uses the other buffer. Whoever has come to its meeting has read the chunk before, so one meeting
//!    per chunk keeps a buffer from being overwritten while it is read.
//!
//! A wait spins for a microsecond, then lets others have the core between its looks, and then sleeps in the kernel
//! (futex); nobody makes a system call to wake ranks when none sleeps. Every wait has a deadline and names who did not
//! come. An operation that fails aborts the group, and an aborted group stays so: each wait of each rank ends with
//! [`CollectiveError::Aborted`]. A rank that crashes says nothing; the others find out by the deadline.
//!
//! It knows no model, starts no process and no thread, reads no environment and logs nothing. Linux only.

mod error;
mod group;
mod operation;
mod region;
mod rendezvous;
mod staging;
mod turn;

#[cfg(test)]
mod tests;

pub use error::CollectiveError;
pub use group::Group;
pub use operation::Operation;
pub use region::{CHUNK_LEN, MAX_WORLD_SIZE};
pub use turn::Turn;
