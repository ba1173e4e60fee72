//! Limits that a child process of the router sets for itself. A child that exceeds one ends by a signal or an abort,
//! and nothing else is affected.
//!
//! Entry points: [`begin_child`], then [`MappedMemory::limit`] and [`limit_processor_time`].

use std::io;

use rustix::param::page_size;
use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// The addresses that an allocator may reserve without using them, in bytes.
const RESERVED_BYTES: u64 = 256 << 20;

/// The memory that this process has mapped, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MappedMemory {
    /// Private memory that can be written.
    data_bytes: u64,
    all_bytes: u64,
}

/// Lets this process end with the thread that started it, and without a core file.
///
/// # Errors
/// When the parent is gone, or the system refuses.
pub(crate) fn begin_child(parent_pid: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the parent ended before the signal was requested, no signal comes, so the parent is checked here.
    if getppid().map(Pid::as_raw_pid) != Some(parent_pid) {
        return Err(io::Error::other("the process that started this one is gone"));
    }
    set_at_most(Resource::Core, 0)
}

impl MappedMemory {
    /// Returns the memory that is mapped now.
    ///
    /// # Errors
    /// When the kernel does not tell it.
    pub(crate) fn now() -> io::Result<Self> {
        let pages = std::fs::read_to_string("/proc/self/statm")?;
        let pages: Vec<u64> = pages.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let [all, .., data, _] = pages[..] else { return Err(io::Error::other("/proc/self/statm has another form")) };
        Ok(Self { data_bytes: data * page_size() as u64, all_bytes: all * page_size() as u64 })
    }

    /// Limits the memory of this process to `more_bytes` in addition to this.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn limit(self, more_bytes: u64) -> io::Result<()> {
        set_at_most(Resource::Data, self.data_bytes.saturating_add(more_bytes))?;
        // Systems that do not limit data count the addresses that an allocator reserves, too.
        set_at_most(Resource::As, self.all_bytes.saturating_add(more_bytes).saturating_add(RESERVED_BYTES))
    }
}

/// Limits the processor time that this process takes from now on. The limit is up to a second less than `seconds`,
/// because the kernel counts whole seconds from the start of the process. It sends SIGXCPU at the limit.
///
/// # Errors
/// When the system refuses.
pub(crate) fn limit_processor_time(seconds: u64) -> io::Result<()> {
    let used_seconds = u64::try_from(clock_gettime(ClockId::ProcessCPUTime).tv_sec).unwrap_or(0);
    set_at_most(Resource::Cpu, used_seconds + seconds)
}

fn set_at_most(resource: Resource, value: u64) -> io::Result<()> {
    let maximum = getrlimit(resource).maximum;
    let current = maximum.map_or(value, |maximum| value.min(maximum));
    Ok(setrlimit(resource, Rlimit { current: Some(current), maximum })?)
}
