//! Support for the tests of all crates.
//!
//! * `waits`: waits with a deadline, after which a test fails and names what did not come.
//! * `processes`: the same for child processes.
//! * `skips`: tests that lack something of the machine, counted in the file that `HILO_SKIPS` names.
//!
//! The crate depends on nothing but the standard library, so that every crate can use it.

#![forbid(unsafe_code)]

mod processes;
mod skips;
mod waits;

pub use processes::{exit_status, output};
pub use skips::{skipped, skipped_unless_required};
pub use waits::{DEADLINE, Meeting, accept, accept_unix, join, join_scoped, receive, until, until_within, watched};
