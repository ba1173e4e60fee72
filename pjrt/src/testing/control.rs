//! The settings with which a test controls the fake plugin, and the state that the test can check. Each thread has its
//! own, unless it adopts another. A client and a topology keep the control of the thread that made them, and so do
//! their devices, buffers and executables, and the events of these.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use super::Slice;
use super::events::Core;
use crate::Value;

thread_local! {
    static CONTROL: RefCell<Arc<Control>> = RefCell::new(Arc::default());
}

/// The kinds of objects that [`Control`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An error.
    Error,
    /// An event.
    Event,
    /// A client.
    Client,
    /// A buffer.
    Buffer,
    /// An executable.
    Executable,
    /// A loaded executable.
    LoadedExecutable,
    /// A topology that no client owns.
    Topology,
    /// A layout.
    Layout,
    /// Bytes that the plugin lends.
    Serialized,
}

const KINDS: usize = 9;

/// The inputs that the plugin received for an execution.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// The name of the program's module. Programs of two numbers have no name.
    pub program: String,
    /// The number of the launch.
    pub launch_id: i32,
    /// The indices of the arguments that must not be donated.
    pub kept: Vec<i64>,
    /// The number of arguments per device.
    pub num_args: usize,
    /// True if the caller chose one device.
    pub is_on_one_device: bool,
    /// True if the caller asked for the events of the end.
    pub has_events: bool,
}

/// The settings and the recorded state of the fake plugin in one test.
#[derive(Debug, Default)]
pub struct Control {
    slice: Mutex<Slice>,
    /// True if new work stays pending until the test fires it.
    pub(crate) is_deferred: AtomicBool,
    /// True if new downloads stay pending until the test fires them.
    holds_downloads: AtomicBool,
    /// True if the plugin does not report the number of parameters, like an older plugin.
    pub(crate) hides_parameters: AtomicBool,
    /// True if the plugin returns null instead of an event, against the header.
    pub(crate) lacks_events: AtomicBool,
    /// The number of bytes by which the plugin's structs are longer than ours.
    pub(crate) newer_by: AtomicUsize,
    alive: [AtomicIsize; KINDS],
    /// The number of objects, without clients and topologies, that still existed when clients were destroyed.
    pub(crate) orphans: AtomicIsize,
    /// The thread that destroyed the last client.
    pub(crate) destroyed_on: Mutex<Option<ThreadId>>,
    pending: Mutex<Vec<Arc<Core>>>,
    failure: Mutex<Option<(&'static str, i32, String)>>,
    client_options: Mutex<Vec<(String, Value)>>,
    programs: Mutex<Vec<String>>,
    executions: Mutex<Vec<Seen>>,
}

/// Returns the control of this thread.
pub fn control() -> Arc<Control> {
    CONTROL.with_borrow(Arc::clone)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    /// Makes `self` the control of the current thread, which is another thread of the same test, such as the plugin's.
    pub fn adopt(self: &Arc<Self>) {
        CONTROL.set(Arc::clone(self));
    }

    /// Sets the devices of clients and topologies that are created from now on.
    pub fn set_slice(&self, slice: Slice) {
        *lock(&self.slice) = slice;
    }

    /// The devices of clients and topologies.
    pub(super) fn slice(&self) -> Slice {
        lock(&self.slice).clone()
    }

    /// Makes new work stay pending until [`Control::fire`] or [`Control::fire_oldest`] ends it.
    pub fn defer(&self) {
        self.is_deferred.store(true, Ordering::SeqCst);
    }

    /// Like [`Control::defer`], but only for downloads.
    pub fn hold_downloads(&self) {
        self.holds_downloads.store(true, Ordering::SeqCst);
    }

    /// True if new work stays pending. `is_download` tells if the work is a download.
    pub(super) fn is_deferred(&self, is_download: bool) -> bool {
        self.is_deferred.load(Ordering::SeqCst) || is_download && self.holds_downloads.load(Ordering::SeqCst)
    }

    /// Ends all pending work: with an error if `outcome` has one, else with success.
    pub fn fire(&self, outcome: Option<(i32, &str)>) {
        let pending = std::mem::take(&mut *lock(&self.pending));
        pending.iter().for_each(|core| end(core, outcome));
    }

    /// Ends the work that has been pending longest, as [`Control::fire`]. Returns false if no work is pending.
    pub fn fire_oldest(&self, outcome: Option<(i32, &str)>) -> bool {
        let oldest = {
            let mut pending = lock(&self.pending);
            (!pending.is_empty()).then(|| pending.remove(0))
        };
        oldest.iter().for_each(|core| end(core, outcome));
        oldest.is_some()
    }

    /// Adds `core` to the pending work.
    pub(super) fn push(&self, core: Arc<Core>) {
        lock(&self.pending).push(core);
    }

    /// Makes the next call of `function`, the name of a C function, fail on this control's threads. Fake functions that
    /// do not call `enter` never fail. A second request replaces the first.
    pub fn fail(&self, function: &'static str, code: i32, message: &str) {
        *lock(&self.failure) = Some((function, code, message.to_owned()));
    }

    pub(super) fn take_failure(&self, function: &str) -> Option<(i32, String)> {
        let mut failure = lock(&self.failure);
        failure.take_if(|(name, ..)| *name == function).map(|(_, code, message)| (code, message))
    }

    /// The options with which the last client was created.
    pub fn client_options(&self) -> Vec<(String, Value)> {
        lock(&self.client_options).clone()
    }

    pub(super) fn set_client_options(&self, options: Vec<(String, Value)>) {
        *lock(&self.client_options) = options;
    }

    /// The texts of the programs that were compiled, in the order in which they were compiled. The text of a module
    /// begins with a line that lists the ids of the assigned devices.
    pub fn programs(&self) -> Vec<String> {
        lock(&self.programs).clone()
    }

    pub(super) fn push_program(&self, text: &str) {
        lock(&self.programs).push(text.to_owned());
    }

    /// The executions that were requested since [`Control::clear_executions`], in order.
    pub fn executions(&self) -> Vec<Seen> {
        lock(&self.executions).clone()
    }

    pub(super) fn push_execution(&self, seen: Seen) {
        lock(&self.executions).push(seen);
    }

    /// Forgets the executions so far.
    pub fn clear_executions(&self) {
        lock(&self.executions).clear();
    }

    /// The size that the fake plugin demands of an argument struct: the size and the extension pointer, the fields `A`,
    /// and the extra bytes of a newer version.
    pub(super) fn demanded_size<A>(&self) -> usize {
        2 * size_of::<usize>() + size_of::<A>() + self.newer_by.load(Ordering::SeqCst)
    }

    pub(super) fn born(&self, kind: Kind) {
        self.alive[kind as usize].fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn died(&self, kind: Kind) {
        self.alive[kind as usize].fetch_sub(1, Ordering::SeqCst);
    }

    /// The number of objects of a kind that exist.
    pub fn alive(&self, kind: Kind) -> isize {
        self.alive[kind as usize].load(Ordering::SeqCst)
    }

    /// The number of objects of all kinds that exist.
    pub(super) fn total(&self) -> isize {
        self.alive.iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }

    /// Checks that no objects exist, and that only clients and topologies existed when clients were destroyed.
    ///
    /// # Panics
    /// When an object exists, or an object of another kind existed when a client was destroyed.
    pub fn assert_clean(&self) {
        assert_eq!(self.total(), 0, "objects that were not destroyed: {:?}", self.alive);
        assert_eq!(self.orphans.load(Ordering::SeqCst), 0, "objects outlived their client");
    }
}

fn end(core: &Core, outcome: Option<(i32, &str)>) {
    core.fire(outcome.map(|(code, message)| (code, message.to_owned())).as_ref());
}
