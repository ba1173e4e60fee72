//! The memory of this machine, within the limits that control groups set for this process.
//!
//! Entry points: [`total_bytes`], [`available_bytes`], [`resident_bytes`]. The tables in `/proc` describe the machine
//! and the process. Limits of the control groups come from `control_group`. The limits of processors need no code
//! here: [`std::thread::available_parallelism`] reads the quotas of the same groups.

mod control_group;

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The table of the machine's memory, below the root folder.
const MEMINFO: &str = "proc/meminfo";
/// The table of this process.
const STATUS: &str = "/proc/self/status";

/// The error when the kernel does not report the memory of the machine.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read: {source}", .path.display())]
pub struct MemoryError {
    path: PathBuf,
    source: io::Error,
}

/// Returns the memory that this process may use at most, in bytes: that of the machine (`MemTotal`), or the least limit
/// of its control groups if that is less.
///
/// # Errors
/// When `/proc/meminfo` cannot be read.
pub fn total_bytes() -> Result<u64, MemoryError> {
    total_below(Path::new("/"))
}

/// Returns an estimate of the bytes that this process could still allocate without swapping or being killed: the
/// available memory of the machine (`MemAvailable`), or the least that a limit of its control groups leaves if that is
/// less.
///
/// # Errors
/// When `/proc/meminfo` cannot be read.
pub fn available_bytes() -> Result<u64, MemoryError> {
    available_below(Path::new("/"))
}

/// Returns the memory that this process uses now (`VmRSS`), in bytes; 0 if the kernel does not report it.
pub fn resident_bytes() -> usize {
    let status = fs::read_to_string(STATUS).unwrap_or_default();
    bytes_of(&status, "VmRSS:").and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
}

/// As [`total_bytes`], of a machine whose root folder is `root`.
fn total_below(root: &Path) -> Result<u64, MemoryError> {
    let limits = control_group::memory_limits(root).into_iter().map(|limit| limit.limit_bytes);
    Ok(limits.fold(machine_bytes(root, "MemTotal:")?, u64::min))
}

/// As [`available_bytes`], of a machine whose root folder is `root`.
fn available_below(root: &Path) -> Result<u64, MemoryError> {
    let left = control_group::memory_limits(root).into_iter().map(|limit| limit.left_bytes());
    Ok(left.fold(machine_bytes(root, "MemAvailable:")?, u64::min))
}

fn machine_bytes(root: &Path, name: &str) -> Result<u64, MemoryError> {
    let path = root.join(MEMINFO);
    let missing = || io::Error::new(io::ErrorKind::InvalidData, format!("it has no line {name} with a size in kB"));
    let bytes = fs::read_to_string(&path).and_then(|table| bytes_of(&table, name).ok_or_else(missing));
    bytes.map_err(|source| MemoryError { path, source })
}

/// Returns the value of the line `name` in one of the kernel's tables, in bytes.
fn bytes_of(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_in_bytes() {
        assert_eq!(bytes_of("MemFree: 1 kB\nMemTotal:       16000 kB\n", "MemTotal:"), Some(16_000 << 10));
        for table in ["VmRSS: many kB\n", "VmRSS: 5\n", "MemTotal: 5 kB\n", "VmRSS: 18446744073709551615 kB\n"] {
            assert_eq!(bytes_of(table, "VmRSS:"), None);
        }
    }

    #[test]
    fn a_machine_without_a_table_is_an_error_that_names_the_file() {
        let root = tempfile::tempdir().unwrap();
        let error = || total_below(root.path()).unwrap_err().to_string();
        let missing = error();
        assert!(missing.contains("proc/meminfo cannot be read: No such file"), "{missing}");
        fs::create_dir(root.path().join("proc")).unwrap();
        fs::write(root.path().join(MEMINFO), "MemAvailable: 5 kB\n").unwrap();
        let incomplete = error();
        assert!(incomplete.ends_with("cannot be read: it has no line MemTotal: with a size in kB"), "{incomplete}");
        assert_eq!(available_below(root.path()).unwrap(), 5 << 10);
    }

    #[test]
    fn this_machine_has_memory() {
        let (total, available, resident) =
            (total_bytes().unwrap(), available_bytes().unwrap(), resident_bytes() as u64);
        assert!(available > 0 && resident > 1 << 20);
        assert!(total > available && total > resident, "{total} {available} {resident}");
    }
}
