//! Meetings of all ranks: arriving, waiting for the others, and aborting the group.
//!
//! A single word counts the arrivals of all ranks. A waiting rank therefore watches only one cache line, and the rank
//! that arrives last knows that it is the last. An abort sets the word's lowest bit. Ranks sleep on this word, so none
//! misses an abort between its last check and its sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use liveness::{AwakeTime, TICK};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::region::Region;
use crate::{CollectiveError, Operation};

const ABORTED: u32 = 1;
const ONE_ARRIVAL: u32 = 2;

/// The time for which a waiting rank spins, if there is a core for every rank. It is the usual time between the
/// arrivals of ranks that run in step.
const SPIN: Duration = Duration::from_micros(1);

/// The number of checks between two reads of the clock while a rank spins.
const LOOKS_PER_ROUND: usize = 32;

/// The time, after the spinning, for which a waiting rank yields its core between checks. If no other thread needs the
/// core, yielding is as good as spinning. Otherwise the thread that needs it may be a missing rank.
const YIELD: Duration = Duration::from_micros(200);

/// One rank's side of the meetings.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    region: Arc<Region>,
    rank: usize,
    deadline: Duration,
    has_own_core: bool,
    /// The number of meetings to which this rank has come. Wraps around.
    num_meetings: u32,
}

impl Rendezvous {
    pub(crate) fn new(region: Arc<Region>, rank: usize, deadline: Duration) -> Self {
        let num_cores = thread::available_parallelism().map_or(1, usize::from);
        let has_own_core = region.num_ranks() <= num_cores;
        Self { region, rank, deadline, has_own_core, num_meetings: 0 }
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Arrives, and returns when all ranks have arrived. Then everything that any rank wrote before its arrival is
    /// visible to this rank.
    ///
    /// # Errors
    /// [`CollectiveError::Deadline`], [`CollectiveError::Aborted`] and [`CollectiveError::Wait`]. A rank that leaves
    /// after this meeting causes no error.
    pub(crate) fn meet(&mut self, operation: Operation) -> Result<(), CollectiveError> {
        self.num_meetings = self.num_meetings.wrapping_add(1);
        let target = self.num_meetings.wrapping_mul(self.region.num_ranks() as u32).wrapping_mul(ONE_ARRIVAL);
        let arrivals = &self.region.header().arrivals.0;
        // Release: a rank that counts this arrival sees what this rank wrote, because the additions of other ranks
        // continue the release sequence. The order is sequentially consistent because `wake` needs it.
        let before = arrivals.fetch_add(ONE_ARRIVAL, Ordering::SeqCst);
        self.region.ranks()[self.rank].num_meetings.0.store(self.num_meetings, Ordering::Release);
        if is_reached(before.wrapping_add(ONE_ARRIVAL), target) {
            self.wake();
            return Ok(());
        }
        if self.looks_until(target) {
            return Ok(());
        }
        self.sleep_until(target, operation)
    }

    /// Checks that no rank has aborted the group.
    ///
    /// # Errors
    /// [`CollectiveError::Aborted`], which names the rank that aborted it.
    pub(crate) fn check_alive(&self) -> Result<(), CollectiveError> {
        check_alive(&self.region)
    }

    /// Aborts the group, unless a rank has already aborted it.
    pub(crate) fn abort(&self) {
        let header = self.region.header();
        let mine = self.rank as u32 + 1;
        // The word keeps the first rank that aborts, because that rank is the cause and later aborts are its
        // consequences.
        let _ = header.aborted_by.0.compare_exchange(0, mine, Ordering::SeqCst, Ordering::SeqCst);
        header.arrivals.0.fetch_or(ABORTED, Ordering::SeqCst);
        // Errors are ignored: only ranks of this group use the words, and a caller could do nothing about an error.
        let _ = futex::wake(&header.arrivals.0, futex::Flags::empty(), u32::MAX >> 1);
        let _ = futex::wake(&header.turns.0.num_ended, futex::Flags::empty(), u32::MAX >> 1);
    }

    /// Wakes the ranks that sleep. A rank counts itself as a sleeper before its last check of the arrivals, and the
    /// last rank counts its arrival before it checks the sleepers. These four operations are sequentially consistent,
    /// so at least one of the two ranks sees what the other has counted.
    fn wake(&self) {
        let header = self.region.header();
        if header.sleepers.0.load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(&header.arrivals.0, futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    /// Spins, then yields. Returns true if all ranks have arrived, and false if the time is over or the group is
    /// aborted.
    fn looks_until(&self, target: u32) -> bool {
        let arrivals = &self.region.header().arrivals.0;
        let start = Instant::now();
        let spin = if self.has_own_core { SPIN } else { Duration::ZERO };
        loop {
            let waited = start.elapsed();
            let looks = if waited < spin { LOOKS_PER_ROUND } else { 1 };
            for _ in 0..looks {
                let seen = arrivals.load(Ordering::Acquire);
                if is_reached(seen, target) {
                    return true;
                }
                if seen & ABORTED != 0 || waited >= spin + YIELD {
                    return false;
                }
                if waited < spin {
                    std::hint::spin_loop();
                } else {
                    thread::yield_now();
                }
            }
        }
    }

    fn sleep_until(&self, target: u32, operation: Operation) -> Result<(), CollectiveError> {
        let sleepers = &self.region.header().sleepers.0;
        sleepers.fetch_add(1, Ordering::SeqCst);
        let result = self.sleep(target, operation);
        sleepers.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn sleep(&self, target: u32, operation: Operation) -> Result<(), CollectiveError> {
        let arrivals = &self.region.header().arrivals.0;
        let mut waited = AwakeTime::start(Instant::now());
        loop {
            let seen = arrivals.load(Ordering::SeqCst);
            if is_reached(seen, target) {
                return Ok(());
            }
            self.check_alive()?;
            let left = self.deadline.saturating_sub(waited.look(Instant::now()));
            if left.is_zero() {
                let missing = self.missing();
                // If no rank is missing, the last one has arrived after the check above.
                return if missing.is_empty() {
                    Ok(())
                } else {
                    Err(CollectiveError::Deadline { operation, missing, after: self.deadline })
                };
            }
            sleep_while(arrivals, seen, left.min(TICK))?;
        }
    }

    /// The ranks that have not come to this rank's meeting. A rank increments its count after its arrival, so a rank
    /// that dies in between counts as missing too.
    fn missing(&self) -> Vec<usize> {
        let is_missing = |rank: &usize| {
            let theirs = self.region.ranks()[*rank].num_meetings.0.load(Ordering::Acquire);
            theirs.wrapping_sub(self.num_meetings).cast_signed() < 0
        };
        (0..self.region.num_ranks()).filter(is_missing).collect()
    }
}

#[cfg(test)]
impl Rendezvous {
    pub(crate) fn start_at(&mut self, num_meetings: u32) {
        self.num_meetings = num_meetings;
    }
}

/// Checks that no rank has aborted the group, also for waits outside meetings.
pub(crate) fn check_alive(region: &Region) -> Result<(), CollectiveError> {
    match region.header().aborted_by.0.load(Ordering::SeqCst) {
        0 => Ok(()),
        number => Err(CollectiveError::Aborted { rank: number as usize - 1 }),
    }
}

/// Sleeps until another rank wakes this one, usually at most for `limit`. Returns at once if `word` is not `seen`, and
/// may return early for no reason.
pub(crate) fn sleep_while(word: &AtomicU32, seen: u32, limit: Duration) -> Result<(), CollectiveError> {
    // A limit too long for the kernel's clock means no limit. The caller checks its own clock anyway.
    let limit = futex::Timespec::try_from(limit).ok();
    match futex::wait(word, futex::Flags::empty(), seen, limit.as_ref()) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(errno) => Err(CollectiveError::Wait { source: errno.into() }),
    }
}

fn is_reached(arrivals: u32, target: u32) -> bool {
    (arrivals & !ABORTED).wrapping_sub(target).cast_signed() >= 0
}
