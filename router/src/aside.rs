//! Work for one request that takes long enough to hold up everybody's streams: on threads of its own behind all others, a few at
//! a time.
//!
//! Doors: [`Aside::run`], and [`lower_priority`] for other threads of that kind. Handlers run on as many threads as there are
//! processors, and so do the steps of a model on the CPU; what takes 100 ms there is a pause of 100 ms for every stream.

use std::sync::Arc;

use rustix::process::{Pid, setpriority_process};
use tokio::sync::{Semaphore, oneshot};

/// Of threads that work aside.
pub(crate) const NICENESS: i32 = 10;

/// Runs such work.
#[derive(Debug, Clone)]
pub(crate) struct Aside(Arc<Semaphore>);

impl Aside {
    /// For this machine.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(num_turns())))
    }

    /// Waits for a turn, then runs `work` on a thread of its own. `None` where the system gives no thread, or `work` panics.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let turn = Arc::clone(&self.0).acquire_owned().await.ok()?;
        let (done_tx, done_rx) = oneshot::channel();
        let work = move || {
            lower_priority(None, NICENESS);
            let _ = done_tx.send(work());
            // Not before: those who have stopped waiting are no reason to begin the next.
            drop(turn);
        };
        std::thread::Builder::new().name("aside".to_owned()).spawn(work).ok()?;
        done_rx.await.ok()
    }
}

/// How much may run aside at a time: half of the processors, and not more than a few.
pub(crate) fn num_turns() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2).min(4))
}

/// Puts a thread, or this one, behind others.
pub(crate) fn lower_priority(thread: Option<Pid>, niceness: i32) {
    if let Err(error) = setpriority_process(thread, niceness) {
        tracing::debug!("a thread does not get niceness {niceness}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[tokio::test]
    async fn work_runs_behind_others() {
        let before = getpriority_process(None).unwrap();
        let during = Aside::new().run(|| getpriority_process(None).unwrap()).await;
        assert_eq!(during, Some(NICENESS.max(before)));
        assert_eq!(getpriority_process(None).unwrap(), before, "of this thread");
    }

    #[tokio::test]
    async fn a_panic_costs_its_own_request_alone() {
        let aside = Aside::new();
        assert_eq!(aside.run(|| -> u32 { panic!("expected by the test") }).await, None);
        assert_eq!(aside.run(|| 7).await, Some(7), "the turn is given back");
    }

    #[tokio::test]
    async fn there_are_a_few_turns() {
        let aside = Aside::new();
        let (wait_tx, wait_rx) = std::sync::mpsc::channel::<()>();
        let wait_rx = Arc::new(std::sync::Mutex::new(wait_rx));
        let mut works = tokio::task::JoinSet::new();
        for _ in 0..num_turns() + 1 {
            let (aside, wait_rx) = (aside.clone(), Arc::clone(&wait_rx));
            works.spawn(async move { aside.run(move || wait_rx.lock().unwrap().recv()).await });
        }
        while aside.0.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(works.try_join_next().is_none());
        drop(wait_tx);
        assert!(works.join_all().await.iter().all(Option::is_some));
    }
}
