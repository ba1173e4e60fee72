//! The host memory of uploads that are under way, which is bounded.
//!
//! Entry point: [`UploadBudget::take`]. The bytes of an upload keep a [`Permit`] until the device has them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A bound for the bytes that are under way.
#[derive(Debug)]
pub(super) struct UploadBudget {
    max_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The bytes under way.
    bytes: u64,
    is_closed: bool,
}

/// The right to have some bytes under way. The bytes count until the permit is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    budget: Arc<UploadBudget>,
    bytes: u64,
}

impl UploadBudget {
    /// Returns a budget of `max_bytes`.
    pub(super) fn new(max_bytes: u64) -> Arc<Self> {
        Arc::new(Self { max_bytes, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Waits until `bytes` more may be under way, and counts them. More bytes than the bound may be under way alone.
    /// Returns `None` if the budget is closed.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let must_wait = |state: &mut State| {
            !state.is_closed && state.bytes > 0 && state.bytes.saturating_add(bytes) > self.max_bytes
        };
        let state = self.changed.wait_while(self.lock(), must_wait);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return None;
        }
        state.bytes = state.bytes.saturating_add(bytes);
        Some(Permit { budget: Arc::clone(self), bytes })
    }

    /// Ends all present and later waits, because an upload has failed.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits until nothing is under way, or the budget is closed.
    pub(super) fn wait_for_all(&self) {
        let state = self.changed.wait_while(self.lock(), |state| !state.is_closed && state.bytes > 0);
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.bytes = state.bytes.saturating_sub(self.bytes);
        self.budget.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use test_support::{join_scoped, watched};

    use super::*;

    #[test]
    fn bytes_wait_for_others_unless_they_are_alone() {
        let budget = UploadBudget::new(10);
        let large = budget.take(50).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| budget.take(4).map(|permit| (permit, budget.lock().bytes)));
            drop(large);
            let (permit, bytes) = join_scoped(waits, "room for the small one").unwrap();
            assert_eq!(bytes, 4, "the large one has ended");
            let second = budget.take(6).unwrap();
            assert_eq!(budget.lock().bytes, 10);
            drop((permit, second));
        });
        watched("the end of all uploads", || budget.wait_for_all());
        assert_eq!(budget.lock().bytes, 0);
    }

    #[test]
    fn a_closed_budget_lets_nobody_wait() {
        let budget = UploadBudget::new(1);
        let _first = budget.take(1).unwrap();
        std::thread::scope(|scope| {
            let waits = [(); 2].map(|()| scope.spawn(|| budget.take(1).is_none()));
            budget.close();
            assert!(waits.into_iter().all(|wait| join_scoped(wait, "the end of a wait")));
        });
        watched("the end of all uploads", || budget.wait_for_all());
    }
}
