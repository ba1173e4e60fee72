//! The threads that compute steps.
//!
//! Entry point: [`Threads`]. A step is hundreds of short tasks, one after the other. In steps that are large enough,
//! threads stay awake from the first task to the last, because waking a thread takes longer than many of the tasks.
//! Between steps, and when a step has nothing for them to do for a while, they sleep.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::error::CpuError;

/// After this many consecutive unsuccessful searches for a task, a thread yields its processor to other threads of the
/// machine.
const LOOKS_BEFORE_OFFER: u32 = 1 << 10;

/// A thread that has found no task for this long stays awake no longer. It may be inside another task of the step,
/// which it took just before the request to stay awake and which waits for a part of itself. The step waits for that
/// task.
const MAX_IDLE: Duration = Duration::from_millis(2);

/// In steps that read fewer bytes of weights, threads are not kept awake, because such a step would end before they are
/// awake.
const MIN_STEP_BYTES: u64 = 32 << 20;

/// A pool of threads.
#[derive(Debug)]
pub(super) struct Threads {
    pool: rayon::ThreadPool,
}

/// Marks a step as over when dropped, so that a panic ends the step too.
struct OnEnd<'a>(&'a AtomicBool);

impl Threads {
    /// Starts `num_threads` threads on the processors of `near`, or on any processors if `near` is `None`.
    ///
    /// # Errors
    /// When the system cannot start the threads.
    pub(super) fn new(num_threads: usize, near: Option<CpuSet>) -> Result<Self, CpuError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(num_threads)
            .thread_name(|index| format!("compute-{index}"))
            .start_handler(move |_| {
                if let Some(near) = &near {
                    // A failure is ignored: on other processors the threads compute the same results, only more slowly.
                    let _ = sched_setaffinity(None, near);
                }
            })
            .build()
            .map_err(|source| CpuError::Threads { num_threads, source })?;
        Ok(Self { pool })
    }

    /// Runs `work` on one of the threads, and the tasks that `work` splits off on all of them.
    pub(super) fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }

    /// Runs `work`, a step that reads `size_bytes` of weights, as [`Self::install`] does. If `size_bytes` is at least
    /// [`MIN_STEP_BYTES`], the other threads stay awake until the step ends or they have had no task for [`MAX_IDLE`].
    pub(super) fn step<R: Send>(&self, size_bytes: u64, work: impl FnOnce() -> R + Send) -> R {
        if size_bytes < MIN_STEP_BYTES {
            return self.install(work);
        }
        let is_over = AtomicBool::new(false);
        let is_over = &is_over;
        self.pool.scope(|scope| {
            let own = rayon::current_thread_index();
            scope.spawn_broadcast(move |_, thread| {
                if Some(thread.index()) != own {
                    stay_awake(is_over);
                }
            });
            let _end = OnEnd(is_over);
            work()
        })
    }
}

impl Drop for OnEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs tasks that other threads have split off, until the step is over or there has been no task for [`MAX_IDLE`].
fn stay_awake(is_over: &AtomicBool) {
    let (mut num_looks, mut idle_since) = (0, None);
    while !is_over.load(Ordering::Acquire) {
        if rayon::yield_now() == Some(rayon::Yield::Executed) {
            (num_looks, idle_since) = (0, None);
            continue;
        }
        num_looks += 1;
        if num_looks < LOOKS_BEFORE_OFFER {
            std::hint::spin_loop();
            continue;
        }
        if idle_since.get_or_insert_with(Instant::now).elapsed() > MAX_IDLE {
            return;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;

    use rayon::prelude::*;
    use test_support::{Meeting, until};

    use super::*;

    #[test]
    fn others_take_pieces_of_a_step() {
        let threads = Threads::new(3, None).unwrap();
        // The meeting ends only when all three threads have arrived, so each of them takes one piece.
        let meeting = Meeting::new(3);
        for _ in 0..100 {
            let pieces = [const { AtomicUsize::new(0) }; 3];
            threads.step(u64::MAX, || {
                (0..3).into_par_iter().with_max_len(1).for_each(|_| {
                    let thread = rayon::current_thread_index().expect("a thread of the pool");
                    pieces[thread].fetch_add(1, Ordering::Relaxed);
                    meeting.attend("the other threads of the step");
                });
            });
            assert_eq!(pieces.map(AtomicUsize::into_inner), [1; 3]);
        }
    }

    #[test]
    fn a_step_that_panics_lets_the_others_go() {
        let threads = Threads::new(2, None).unwrap();
        let result = catch_unwind(AssertUnwindSafe(|| threads.step(u64::MAX, || panic!("a step went wrong"))));
        assert!(result.is_err());
        assert_eq!(threads.step(u64::MAX, || (0..10).into_par_iter().sum::<i32>()), 45);
    }

    #[test]
    fn a_thread_that_stays_awake_inside_a_task_returns_to_it() {
        let threads = Threads::new(2, None).unwrap();
        let [is_taken, has_begun, is_done] = [const { AtomicBool::new(false) }; 3];
        let wait_for = |awaited: &str, flag: &AtomicBool| until(awaited, || flag.load(Ordering::Acquire));
        let other = || {
            is_taken.store(true, Ordering::Release);
            wait_for("the begin of the step", &has_begun);
            // Takes the request to stay awake.
            assert_eq!(rayon::yield_now(), Some(rayon::Yield::Executed));
            is_done.store(true, Ordering::Release);
        };
        let step = || {
            wait_for("the other task", &is_taken);
            threads.step(u64::MAX, || {
                has_begun.store(true, Ordering::Release);
                wait_for("the end of the other task", &is_done);
            });
        };
        threads.install(|| rayon::join(step, other));
    }

    #[test]
    fn a_single_thread_does_all() {
        let threads = Threads::new(1, None).unwrap();
        assert_eq!(threads.step(u64::MAX, || (0..10).into_par_iter().sum::<i32>()), 45);
    }
}
