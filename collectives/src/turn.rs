//! Turns limit how many ranks of a host do something at once, such as loading, which needs much memory for a while.
//!
//! Ranks take turns in order of arrival: a rank draws a ticket, and its turn begins when all but `max_at_once − 1` of
//! the turns before it have ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use liveness::{AwakeTime, TICK};
use rustix::thread::futex;

use crate::region::Region;
use crate::rendezvous::{check_alive, sleep_while};
use crate::{CollectiveError, Operation};

/// The interval at which a waiting rank calls `waiting`.
const WAITING_EVERY: Duration = TICK;

/// The permission to do something that only some ranks may do at once. It lasts until it is dropped.
#[derive(Debug)]
#[must_use = "the turn ends when it is dropped"]
pub struct Turn {
    region: Arc<Region>,
    rank: usize,
}

impl Turn {
    /// Waits for this rank's turn, and returns it. The deadline starts again whenever a turn ends.
    pub(crate) fn take(
        region: &Arc<Region>,
        rank: usize,
        max_at_once: usize,
        deadline: Duration,
        waiting: &mut dyn FnMut(),
    ) -> Result<Self, CollectiveError> {
        let num_ended = &region.header().turns.0.num_ended;
        let ticket = region.header().turns.0.num_drawn.fetch_add(1, Ordering::SeqCst);
        let limit = u32::try_from(max_at_once).unwrap_or(u32::MAX >> 1).clamp(1, u32::MAX >> 1);
        let (mut last_word, mut waited) = (Instant::now(), AwakeTime::start(Instant::now()));
        let mut seen = num_ended.load(Ordering::SeqCst);
        loop {
            check_alive(region)?;
            // Both counters wrap around. Their difference is small, so it is correct as a signed number.
            if ticket.wrapping_sub(seen).cast_signed() < limit.cast_signed() {
                region.ranks()[rank].num_turns.fetch_add(1, Ordering::SeqCst);
                return Ok(Self { region: region.clone(), rank });
            }
            if waited.look(Instant::now()) >= deadline {
                let operation = Operation::Turn { max_at_once };
                return Err(CollectiveError::Deadline { operation, missing: holders(region), after: deadline });
            }
            sleep_while(num_ended, seen, WAITING_EVERY.saturating_sub(last_word.elapsed()).min(deadline))?;
            if last_word.elapsed() >= WAITING_EVERY {
                waiting();
                last_word = Instant::now();
            }
            let now = num_ended.load(Ordering::SeqCst);
            if now != seen {
                seen = now;
                waited.restart(Instant::now());
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.region.ranks()[self.rank].num_turns.fetch_sub(1, Ordering::SeqCst);
        let num_ended = &self.region.header().turns.0.num_ended;
        num_ended.fetch_add(1, Ordering::SeqCst);
        // Turns are rare, so a system call for each costs less than counting the ranks that sleep.
        let _ = futex::wake(num_ended, futex::Flags::empty(), u32::MAX >> 1);
    }
}

/// The ranks that have a turn now.
fn holders(region: &Region) -> Vec<usize> {
    let holds = |rank: &usize| region.ranks()[*rank].num_turns.load(Ordering::SeqCst) != 0;
    (0..region.num_ranks()).filter(holds).collect()
}
