//! The settings with which a test controls the fake plugin, and the state that the test can check. Each test thread has
//! its own.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::events::Core;

thread_local! {
    static CONTROL: RefCell<Arc<Control>> = RefCell::new(Arc::default());
}

/// The kinds of objects that [`Control`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Error,
    Event,
    Client,
    Buffer,
    Executable,
    LoadedExecutable,
    Topology,
    Layout,
    Serialized,
}

const KINDS: usize = 9;

/// The inputs that the plugin received for an execution.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) launch_id: i32,
    pub(crate) kept: Vec<i64>,
    pub(crate) num_args: usize,
    pub(crate) is_on_one_device: bool,
}

/// The settings and the recorded state of the fake plugin in one test.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// True if events stay pending until [`Control::fire`].
    pub(crate) is_deferred: AtomicBool,
    /// True if the plugin does not report the number of parameters, as before API 0.104.
    pub(crate) hides_parameters: AtomicBool,
    /// The number of bytes by which the plugin's structs are longer than ours.
    pub(crate) newer_by: AtomicUsize,
    alive: [AtomicIsize; KINDS],
    /// The number of objects of a client that still existed when the client was destroyed.
    pub(crate) orphans: AtomicIsize,
    pending: Mutex<Vec<Arc<Core>>>,
    failure: Mutex<Option<(&'static str, i32, String)>>,
    pub(crate) seen: Mutex<Option<Seen>>,
}

/// Returns the control of this thread.
pub(crate) fn control() -> Arc<Control> {
    CONTROL.with_borrow(Arc::clone)
}

impl Control {
    /// Makes `self` the control of the current thread, which is another thread of the same test, such as the plugin's.
    pub(crate) fn adopt(self: &Arc<Self>) {
        CONTROL.set(Arc::clone(self));
    }

    /// Makes new events stay pending until [`Control::fire`].
    pub(crate) fn defer(&self) {
        self.is_deferred.store(true, Ordering::SeqCst);
    }

    /// Ends all pending work: with an error if `outcome` has one, else with success.
    pub(crate) fn fire(&self, outcome: Option<(i32, &str)>) {
        let outcome = outcome.map(|(code, message)| (code, message.to_owned()));
        let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        for core in pending {
            core.fire(outcome.as_ref());
        }
    }

    /// Adds `core` to the pending work.
    pub(crate) fn push(&self, core: Arc<Core>) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push(core);
    }

    /// Makes the next call of the C function `function` fail.
    pub(crate) fn fail(&self, function: &'static str, code: i32, message: &str) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some((function, code, message.to_owned()));
    }

    pub(crate) fn take_failure(&self, function: &str) -> Option<(i32, String)> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take_if(|(name, ..)| *name == function).map(|(_, code, message)| (code, message))
    }

    /// The size that the fake plugin demands of an argument struct: the header, the fields `A`, and the extra bytes of
    /// a newer version.
    pub(crate) fn demanded_size<A>(&self) -> usize {
        2 * size_of::<usize>() + size_of::<A>() + self.newer_by.load(Ordering::SeqCst)
    }

    pub(crate) fn born(&self, kind: Kind) {
        self.alive[kind as usize].fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn died(&self, kind: Kind) {
        self.alive[kind as usize].fetch_sub(1, Ordering::SeqCst);
    }

    /// The number of objects of a kind that exist.
    pub(crate) fn alive(&self, kind: Kind) -> isize {
        self.alive[kind as usize].load(Ordering::SeqCst)
    }

    /// The number of objects of all kinds that exist.
    pub(crate) fn total(&self) -> isize {
        self.alive.iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }

    /// Checks that no objects exist, and that none of a client's objects existed when the client was destroyed.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.total(), 0, "objects that were not destroyed: {:?}", self.alive);
        assert_eq!(self.orphans.load(Ordering::SeqCst), 0, "objects outlived their client");
    }
}
