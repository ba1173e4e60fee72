//! The number of connections that this process may hold, by their memory and by its limit of open files.
//!
//! Entry points: [`CONNECTION_BYTES`], [`max_bytes`].

use rustix::process::{Resource, getrlimit};

/// The memory of a connection, in bytes: its read and write buffers, and TLS. The connections' part of the memory
/// budget, and the limit of open files, limit the number of open connections; more connections wait to be accepted.
pub(crate) const CONNECTION_BYTES: usize = 64 << 10;

/// The number of files that the router may open while it serves, besides one for each connection: pipes of processes
/// that compile grammars or render conversations, subscribers to events, and files of logs and facts.
const RESERVED_FILES: u64 = 128;

/// Returns the memory of the largest number of connections that the limit of open files allows, in bytes.
pub(crate) fn max_bytes() -> usize {
    // No limit is as good as a large one.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let num_open = std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64);
    let num_connections = usize::try_from(max_connections(limit, num_open)).unwrap_or(usize::MAX);
    num_connections.saturating_mul(CONNECTION_BYTES)
}

/// Returns the number of connections under a limit of open files. Half of a low limit is for other files.
fn max_connections(limit: u64, num_open: u64) -> u64 {
    let rest = limit.saturating_sub(num_open);
    rest.saturating_sub(RESERVED_FILES).max(rest / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_rest() {
        for (limit, num_open, expected) in
            [(256, 40, 108), (1024, 40, 856), (u64::MAX, 0, u64::MAX - RESERVED_FILES), (40, 40, 1), (10, 40, 1)]
        {
            assert_eq!(max_connections(limit, num_open), expected, "{limit} {num_open}");
        }
    }
}
