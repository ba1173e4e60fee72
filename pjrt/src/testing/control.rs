//! What a test controls and sees of the fake plugin, one per test thread.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::events::Core;

thread_local! {
    static CONTROL: RefCell<Arc<Control>> = RefCell::new(Arc::default());
}

/// Kinds of objects that are counted.
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

/// What an execution was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) launch_id: i32,
    pub(crate) kept: Vec<i64>,
    pub(crate) num_args: usize,
    pub(crate) is_on_one_device: bool,
}

/// The strings behind the fake plugin.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// Events stay pending until [`Control::fire`].
    pub(crate) is_deferred: AtomicBool,
    /// Parameters are told, as by API 0.104.
    pub(crate) hides_parameters: AtomicBool,
    /// Bytes that the plugin's structs are longer than ours.
    pub(crate) newer_by: AtomicUsize,
    alive: [AtomicIsize; KINDS],
    /// Objects that were alive when the client was destroyed.
    pub(crate) orphans: AtomicIsize,
    pending: Mutex<Vec<Arc<Core>>>,
    failure: Mutex<Option<(&'static str, i32, String)>>,
    pub(crate) seen: Mutex<Option<Seen>>,
}

/// The control of this thread.
pub(crate) fn control() -> Arc<Control> {
    CONTROL.with_borrow(Arc::clone)
}

impl Control {
    /// Another thread of the same test, such as the plugin's own.
    pub(crate) fn adopt(self: &Arc<Self>) {
        CONTROL.set(Arc::clone(self));
    }

    /// Events stay pending from now on.
    pub(crate) fn defer(&self) {
        self.is_deferred.store(true, Ordering::SeqCst);
    }

    /// Ends all pending work, well or with an error.
    pub(crate) fn fire(&self, outcome: Option<(i32, &str)>) {
        let outcome = outcome.map(|(code, message)| (code, message.to_owned()));
        let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        for core in pending {
            core.fire(outcome.as_ref());
        }
    }

    /// Remembers work to end.
    pub(crate) fn push(&self, core: Arc<Core>) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push(core);
    }

    /// Lets the next call of a function fail.
    pub(crate) fn fail(&self, function: &'static str, code: i32, message: &str) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some((function, code, message.to_owned()));
    }

    pub(crate) fn take_failure(&self, function: &str) -> Option<(i32, String)> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take_if(|(name, ..)| *name == function).map(|(_, code, message)| (code, message))
    }

    /// How large the plugin's own struct is.
    pub(crate) fn demanded_size<A>(&self) -> usize {
        2 * size_of::<usize>() + size_of::<A>() + self.newer_by.load(Ordering::SeqCst)
    }

    pub(crate) fn born(&self, kind: Kind) {
        self.alive[kind as usize].fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn died(&self, kind: Kind) {
        self.alive[kind as usize].fetch_sub(1, Ordering::SeqCst);
    }

    /// How many there are.
    pub(crate) fn alive(&self, kind: Kind) -> isize {
        self.alive[kind as usize].load(Ordering::SeqCst)
    }

    /// All objects.
    pub(crate) fn total(&self) -> isize {
        self.alive.iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }

    /// Nothing is left, and nothing was left when the client went.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.total(), 0, "objects that were not destroyed: {:?}", self.alive);
        assert_eq!(self.orphans.load(Ordering::SeqCst), 0, "objects outlived their client");
    }
}
