//! Fake errors and events.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{Control, Kind, control, enter};
use crate::ffi::values::{
    ErrorDestroy, ErrorGetCode, ErrorMessage, EventAwait, EventDestroy, EventIsReady, EventOnReady, OnReadyCallback,
};
use crate::ffi::{RawError, RawEvent, Struct};

/// The code and the message of a failure.
pub(super) type Failure = (i32, String);
/// An action that runs when an event fires, before the callbacks.
type Action = Box<dyn FnOnce() + Send>;

struct FakeError {
    failure: Failure,
    control: Arc<Control>,
}

/// Creates an error that the caller owns.
pub(super) fn new_error(code: i32, message: &str) -> *mut RawError {
    new_error_of(&control(), (code, message.to_owned()))
}

fn new_error_of(control: &Arc<Control>, failure: Failure) -> *mut RawError {
    control.born(Kind::Error);
    Box::into_raw(Box::new(FakeError { failure, control: Arc::clone(control) })).cast()
}

pub(super) unsafe extern "C-unwind" fn error_destroy(call: *mut Struct<ErrorDestroy>) {
    // SAFETY: the error comes from `new_error_of` and is destroyed only once.
    let error = unsafe { Box::from_raw((*call).fields.error.cast::<FakeError>()) };
    error.control.died(Kind::Error);
}

pub(super) unsafe extern "C-unwind" fn error_message(call: *mut Struct<ErrorMessage>) {
    // SAFETY: the error comes from `new_error` and has not been destroyed.
    unsafe {
        let error = &*(*call).fields.error.cast::<FakeError>();
        (*call).fields.message = error.failure.1.as_ptr().cast();
        (*call).fields.message_size = error.failure.1.len();
    }
}

pub(super) unsafe extern "C-unwind" fn error_get_code(call: *mut Struct<ErrorGetCode>) -> *mut RawError {
    // SAFETY: the error comes from `new_error` and has not been destroyed.
    unsafe { (*call).fields.code = (*(*call).fields.error.cast::<FakeError>()).failure.0 };
    std::ptr::null_mut()
}

/// The asynchronous work of an event. It may outlive the event.
pub(super) struct Core {
    state: Mutex<State>,
    changed: Condvar,
    control: Arc<Control>,
}

#[derive(Default)]
struct State {
    /// The outcome of the work, if it has ended. `Some(None)` is success.
    outcome: Option<Option<Failure>>,
    callbacks: Vec<(OnReadyCallback, UserArg)>,
    actions: Vec<Action>,
}

struct UserArg(*mut c_void);

// SAFETY: the wrapper allows its callbacks to run on any thread.
unsafe impl Send for UserArg {}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Core")
    }
}

impl Core {
    /// Returns work that has already ended with success.
    pub(super) fn ended(control: &Arc<Control>) -> Arc<Self> {
        let state = State { outcome: Some(None), ..State::default() };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), control: Arc::clone(control) })
    }

    /// Returns work that runs `action` at once or, if work is deferred, when the test fires the work.
    pub(super) fn start(control: &Arc<Control>, action: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Self::start_or_defer(control, control.is_deferred(false), action)
    }

    /// As [`Core::start`], but for a download.
    pub(super) fn start_download(control: &Arc<Control>, action: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Self::start_or_defer(control, control.is_deferred(true), action)
    }

    fn start_or_defer(control: &Arc<Control>, is_deferred: bool, action: impl FnOnce() + Send + 'static) -> Arc<Self> {
        if !is_deferred {
            action();
            return Self::ended(control);
        }
        let state = State { actions: vec![Box::new(action)], ..State::default() };
        let core = Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), control: Arc::clone(control) });
        control.push(Arc::clone(&core));
        core
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the work: runs its actions, stores the outcome, and calls the callbacks. `None` is success.
    pub(super) fn fire(&self, outcome: Option<&Failure>) {
        let actions = std::mem::take(&mut self.lock().actions);
        actions.into_iter().for_each(|action| action());
        let callbacks = {
            let mut state = self.lock();
            state.outcome = Some(outcome.cloned());
            std::mem::take(&mut state.callbacks)
        };
        self.changed.notify_all();
        for (callback, user_arg) in callbacks {
            // SAFETY: callback and argument were registered together, and each callback is called only once.
            unsafe { callback(self.error_of(outcome), user_arg.0) };
        }
    }

    fn error_of(&self, failure: Option<&Failure>) -> *mut RawError {
        failure.map_or(std::ptr::null_mut(), |failure| new_error_of(&self.control, failure.clone()))
    }
}

/// The maximum time of a wait for an event, longer than any wait in a correct test.
const DEADLINE: Duration = Duration::from_secs(60);

struct FakeEvent {
    core: Arc<Core>,
}

/// Creates an event of this work. The caller owns the event. Null if the test has requested this.
pub(super) fn new_event(core: Arc<Core>) -> *mut RawEvent {
    if core.control.lacks_events.load(Ordering::SeqCst) {
        return std::ptr::null_mut();
    }
    core.control.born(Kind::Event);
    Box::into_raw(Box::new(FakeEvent { core })).cast()
}

pub(super) unsafe extern "C-unwind" fn destroy(call: *mut Struct<EventDestroy>) -> *mut RawError {
    // SAFETY: the event comes from `new_event` and is destroyed only once.
    let event = unsafe { Box::from_raw((*call).fields.event.cast::<FakeEvent>()) };
    event.core.control.died(Kind::Event);
    std::ptr::null_mut()
}

pub(super) unsafe extern "C-unwind" fn is_ready(call: *mut Struct<EventIsReady>) -> *mut RawError {
    // SAFETY: the event comes from `new_event` and has not been destroyed.
    unsafe {
        let event = &*(*call).fields.event.cast::<FakeEvent>();
        (*call).fields.is_ready = u8::from(event.core.lock().outcome.is_some());
        enter(call)
    }
}

pub(super) unsafe extern "C-unwind" fn wait(call: *mut Struct<EventAwait>) -> *mut RawError {
    // SAFETY: the event comes from `new_event` and has not been destroyed.
    let core = unsafe { Arc::clone(&(*(*call).fields.event.cast::<FakeEvent>()).core) };
    let state = core.changed.wait_timeout_while(core.lock(), DEADLINE, |state| state.outcome.is_none());
    let (state, timeout) = state.unwrap_or_else(PoisonError::into_inner);
    assert!(!timeout.timed_out(), "waited {DEADLINE:?} for an event that nobody ends");
    core.error_of(state.outcome.as_ref().and_then(Option::as_ref))
}

pub(super) unsafe extern "C-unwind" fn on_ready(call: *mut Struct<EventOnReady>) -> *mut RawError {
    // SAFETY: the caller passes a valid pointer to the argument struct, which lives for the whole call.
    let error = unsafe { enter(call) };
    if !error.is_null() {
        return error;
    }
    // SAFETY: the event comes from `new_event` and has not been destroyed.
    let (core, callback, user_arg) = unsafe {
        let EventOnReady { event, callback, user_arg } = &(*call).fields;
        (Arc::clone(&(*event.cast::<FakeEvent>()).core), *callback, *user_arg)
    };
    let outcome = {
        let mut state = core.lock();
        if state.outcome.is_none() {
            state.callbacks.push((callback, UserArg(user_arg)));
        }
        state.outcome.clone()
    };
    if let Some(outcome) = outcome {
        // SAFETY: callback and argument were registered together, and the callback is called only once.
        unsafe { callback(core.error_of(outcome.as_ref()), user_arg) };
    }
    std::ptr::null_mut()
}
