//! Runs long work of single requests on separate threads with low priority, a few at a time, so that the work does not
//! delay the streams of other requests.
//!
//! Entry points: [`Aside::run`], and [`lower_priority`] for other threads with long work. The handlers of all requests
//! share a few threads, and on the CPU the steps of the model use all processors. Long work on these threads would
//! therefore pause the streams of other requests.

use std::sync::Arc;

use rustix::process::{Pid, setpriority_process};
use tokio::sync::{Semaphore, oneshot};

/// The niceness of the threads that run long work.
pub(crate) const NICENESS: i32 = 10;

/// A limit on the amount of long work that runs at a time. Clones share the limit.
#[derive(Debug, Clone)]
pub(crate) struct Aside(Arc<Semaphore>);

impl Aside {
    /// Creates a limit of [`num_turns`].
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(num_turns())))
    }

    /// Waits until the limit allows `work`, then runs `work` on a new thread. Returns `None` if the thread cannot be
    /// started or `work` panics.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let turn = Arc::clone(&self.0).acquire_owned().await.ok()?;
        let (done_tx, done_rx) = oneshot::channel();
        let work = move || {
            lower_priority(None, NICENESS);
            let _ = done_tx.send(work());
            // The permit is held until the work ends, even if the caller has stopped waiting. Otherwise more work than
            // the limit allows would run.
            drop(turn);
        };
        std::thread::Builder::new().name("aside".to_owned()).spawn(work).ok()?;
        done_rx.await.ok()
    }
}

/// Returns the number of threads that may run long work at a time: half of the processors, rounded up, at most four.
pub(crate) fn num_turns() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2).min(4))
}

/// Lowers the priority of a thread; `None` means the calling thread.
pub(crate) fn lower_priority(thread: Option<Pid>, niceness: i32) {
    if let Err(error) = setpriority_process(thread, niceness) {
        tracing::debug!("a thread cannot get niceness {niceness}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;

    use rustix::process::getpriority_process;

    use super::*;
    use crate::testing::{DEADLINE, until, within};

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
            works.spawn(async move { aside.run(move || wait_rx.lock().unwrap().recv_timeout(DEADLINE)).await });
        }
        until("all turns to be taken", || aside.0.available_permits() == 0).await;
        assert!(works.try_join_next().is_none());
        drop(wait_tx);
        let results = within("the end of all work", works.join_all()).await;
        assert!(results.iter().all(|result| *result == Some(Err(RecvTimeoutError::Disconnected))), "{results:?}");
    }
}
