//! The processors that this process may use: which of them share a core, and which memory (NUMA node) is nearest.
//!
//! Entry point: [`Processors`]. One thread runs per core: the hardware threads of a core (SMT) share its arithmetic
//! units and its path to memory, so a second thread would slow the first one down. On a machine with several memories
//! and several ranks, a rank stays on the processors nearest to the memories of its share of the cores.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The folder where Linux describes its processors.
const SYSTEM: &str = "/sys/devices/system/cpu";

/// The processors of a process, grouped by core. Empty if the system does not list them.
#[derive(Debug)]
pub struct Processors {
    /// Sorted by memory, then by the numbers of the processors.
    cores: Vec<Core>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Core {
    memory: usize,
    processors: Vec<usize>,
}

impl Processors {
    /// Returns the processors of this process.
    pub fn of_process() -> Self {
        let allowed = sched_getaffinity(None);
        let allowed = allowed.map(|set| (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect());
        Self::read(Path::new(SYSTEM), allowed.unwrap_or_default())
    }

    /// Returns the processors of `allowed`, as the folder `system` describes them. A processor without description is a
    /// core of its own, next to the first memory.
    fn read(system: &Path, allowed: Vec<usize>) -> Self {
        let mut cores: BTreeMap<(usize, String), Vec<usize>> = BTreeMap::new();
        for processor in allowed {
            let folder = system.join(format!("cpu{processor}"));
            let siblings = fs::read_to_string(folder.join("topology/thread_siblings_list"));
            let siblings = siblings.unwrap_or_else(|_| processor.to_string());
            cores.entry((memory_of(&folder), siblings.trim().to_owned())).or_default().push(processor);
        }
        let mut cores: Vec<Core> =
            cores.into_iter().map(|((memory, _), processors)| Core { memory, processors }).collect();
        cores.sort();
        Self { cores }
    }

    /// Returns the number of compute threads, at most `available`: one for each core, or `available` if the cores are
    /// unknown.
    pub fn num_threads(&self, available: usize) -> usize {
        if self.cores.is_empty() { available } else { available.min(self.cores.len()) }
    }

    /// Returns the processors for the threads of a rank: those next to the memories of its share of the cores. `None`
    /// if this would exclude no processor (there is one memory, or the share includes cores of every memory), or if
    /// there are more ranks than cores and the share is empty.
    pub(super) fn near_rank(&self, rank: usize, num_ranks: usize) -> Option<CpuSet> {
        let share = rank * self.cores.len() / num_ranks..(rank + 1) * self.cores.len() / num_ranks;
        let memories = self.cores.get(share)?.iter().map(|core| core.memory);
        let memories: Vec<usize> = memories.collect();
        let (near, far): (Vec<&Core>, Vec<&Core>) = self.cores.iter().partition(|core| memories.contains(&core.memory));
        if near.is_empty() || far.is_empty() {
            return None;
        }
        let mut set = CpuSet::new();
        near.into_iter().flat_map(|core| &core.processors).for_each(|processor| set.set(*processor));
        Some(set)
    }
}

/// Returns the number of the NUMA node that the processor of `folder` belongs to; 0 if the folder names none.
fn memory_of(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok());
    numbers.min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Describes a machine of two memories with two cores each, and two processors per core. The processors are
    /// numbered as by Linux: first one processor of each core, then the second processor of each core.
    fn two_memories() -> tempfile::TempDir {
        let system = tempfile::tempdir().unwrap();
        for processor in 0..8 {
            let core = processor % 4;
            let folder = system.path().join(format!("cpu{processor}"));
            fs::create_dir_all(folder.join("topology")).unwrap();
            fs::create_dir(folder.join(format!("node{}", core / 2))).unwrap();
            fs::write(folder.join("topology/thread_siblings_list"), format!("{core},{}\n", core + 4)).unwrap();
        }
        system
    }

    fn numbers(set: &CpuSet) -> Vec<usize> {
        (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect()
    }

    #[test]
    fn threads_of_a_core_count_once() {
        let system = two_memories();
        let num_threads =
            |allowed: &[usize], available| Processors::read(system.path(), allowed.to_vec()).num_threads(available);
        assert_eq!(num_threads(&[0, 1, 2, 3, 4, 5, 6, 7], 8), 4);
        assert_eq!(num_threads(&[0, 1, 2, 3, 4, 5, 6, 7], 3), 3, "its control group's quota is less");
        assert_eq!(num_threads(&[0, 4], 2), 1, "both processors of one core");
        assert_eq!(num_threads(&[1, 4, 6], 3), 3, "processors of three cores");
        assert_eq!(num_threads(&[], 2), 2, "the system does not list processors");
    }

    #[test]
    fn a_processor_without_a_description_is_a_core_of_its_own() {
        let system = tempfile::tempdir().unwrap();
        let processors = Processors::read(system.path(), vec![0, 1, 2]);
        assert_eq!(processors.num_threads(8), 3);
        assert!(processors.near_rank(0, 2).is_none(), "one memory");
    }

    #[test]
    fn ranks_stay_next_to_their_memory() {
        let system = two_memories();
        let near = |rank, num_ranks| {
            let processors = Processors::read(system.path(), (0..8).collect());
            processors.near_rank(rank, num_ranks).map(|set| numbers(&set))
        };
        assert_eq!(near(0, 1), None, "one rank uses all");
        assert_eq!([near(0, 2), near(1, 2)], [Some(vec![0, 1, 4, 5]), Some(vec![2, 3, 6, 7])]);
        assert_eq!([near(1, 4), near(3, 4)], [Some(vec![0, 1, 4, 5]), Some(vec![2, 3, 6, 7])]);
        assert_eq!([near(0, 3), near(1, 3), near(2, 3)], [near(0, 2), near(0, 2), near(1, 2)]);
        assert_eq!(near(0, 8), None, "more ranks than cores");
    }

    #[test]
    fn this_process_has_some() {
        assert!(!Processors::of_process().cores.is_empty());
    }
}
