//! Finds the port on which a process listens, from the kernel's tables.

use std::collections::BTreeSet;
use std::fs;

/// The state of a listening socket in the kernel's table.
const LISTENING: &str = "0A";

/// The IPv4 TCP port on which the process `pid` listens; `None` if there is none.
pub(crate) fn listening_port(pid: i32) -> Option<u16> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let targets = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let inode =
        |target: std::path::PathBuf| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    let sockets: BTreeSet<String> = targets.filter_map(inode).collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).ok()?;
    table.lines().skip(1).find_map(|row| {
        // `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode` (`proc(5)`).
        let columns: Vec<&str> = row.split_whitespace().collect();
        let (address, state, inode) = (columns.get(1)?, columns.get(3)?, columns.get(9)?);
        let is_wanted = *state == LISTENING && sockets.contains(*inode);
        is_wanted.then(|| u16::from_str_radix(address.split_once(':')?.1, 16).ok()).flatten()
    })
}
