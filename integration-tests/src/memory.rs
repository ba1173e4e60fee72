//! The resident memory of a server's processes, as the kernel reports it.

use crate::Server;

/// The number of bytes of resident memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resident {
    /// The bytes of the router.
    pub router: u64,
    /// The bytes of all shards together.
    pub shards: u64,
}

/// The processes whose memory is measured.
#[derive(Debug)]
pub struct Processes {
    router: i32,
    shards: Vec<i32>,
}

impl Processes {
    /// The processes of a server that is ready.
    pub fn of(server: &Server) -> Self {
        Self { router: server.child("router"), shards: server.children("shard") }
    }

    /// The memory that the processes have now. A process that has exited counts as zero.
    pub fn now(&self) -> Resident {
        self.read("VmRSS:")
    }

    /// The peaks of the processes' memory since [`Self::forget_peak`]; that of the shards is the sum of their peaks.
    pub fn peak(&self) -> Resident {
        self.read("VmHWM:")
    }

    /// Resets the peaks of memory that the kernel records.
    pub fn forget_peak(&self) {
        for pid in self.all() {
            let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
        }
    }

    /// True if all processes still run.
    pub fn are_alive(&self) -> bool {
        self.all().all(|pid| bytes_of(pid, "VmRSS:").is_some())
    }

    fn all(&self) -> impl Iterator<Item = i32> {
        self.shards.iter().copied().chain([self.router])
    }

    fn read(&self, line: &str) -> Resident {
        let bytes = |pid| bytes_of(pid, line).unwrap_or(0);
        Resident { router: bytes(self.router), shards: self.shards.iter().map(|pid| bytes(*pid)).sum() }
    }
}

fn bytes_of(pid: i32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1 << 10)
}
